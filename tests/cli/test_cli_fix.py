import pytest

from tests.cli.command import run
from tests.diagnosis.test_edits import EXAMPLE, RIGHT

WORDS = (
    "mine.py:delta --batch 1 --heads 2 --seqlen 16 --head-dim 8 --layout do=blhd --fix-budget 20"
)


@pytest.fixture
def mine(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(EXAMPLE)
    return file


def test_fix_shows_the_edit_and_with_apply_writes_it_and_checks_again(mine):
    ran = run(f"fix {WORDS.replace('20', '0')}")
    assert (ran.code, "FIX" in ran.out) == (1, False)
    ran = run(f"fix {WORDS}")
    assert ran.code == 0
    assert "+ do_ptr += b * stride_dob + h * stride_doh" in ran.out
    assert mine.read_text() == EXAMPLE
    asks = run("fix --apply")
    assert (asks.code, mine.read_text()) == (2, EXAMPLE)
    assert "add --yes" in asks.err
    real = mine.rename(mine.with_name("real.py"))
    mine.symlink_to("real.py")
    linked = run("fix --apply --yes")
    assert (linked.code, real.read_text()) == (2, EXAMPLE)
    assert (
        "mine.py is a symbolic link to real.py, and no link is followed to write" in linked.err
    )
    real.replace(mine)
    written = run("fix --apply --yes")
    assert (written.code, mine.read_text()) == (0, RIGHT)
    assert "nothing was run" in written.err
    assert "MATCH  mine.py:delta" in written.out
    again = run("fix")
    assert (again.code, "FIX" in again.out) == (0, False)
