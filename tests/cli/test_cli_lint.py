"""`gradprobe lint`: the verdict first, each finding in its line with a caret, and an exit code that never misleads."""

import json

import pytest

from tests.cli.command import run, run_on_terminal
from tests.lint.written import SOURCE
from tests.planted.lazy_faults import HISTORICAL
from tests.planted.planting import KERNELS


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A file with dO advanced by Q's head stride in three kernels, in the current folder."""
    (tmp_path / "my_lazy.py").write_text(HISTORICAL.plant((KERNELS / "lazy.py").read_text()))
    monkeypatch.chdir(tmp_path)
    return "my_lazy.py"


def test_the_three_lines_of_the_dO_fault_stand_with_carets_and_the_edit(mine):
    ran = run(f"lint {mine}")
    assert ran.code == 1
    lines = ran.out.splitlines()
    assert lines[0] == "FINDINGS  3 wrong strides (my_lazy.py)"
    assert [line for line in lines if line.startswith("my_lazy.py:")] == [
        "my_lazy.py:145  lazy_preprocess_kernel  foreign",
        "my_lazy.py:203  lazy_dq_kernel  foreign",
        "my_lazy.py:275  lazy_dkdv_kernel  foreign",
    ]
    at = lines.index("my_lazy.py:203  lazy_dq_kernel  foreign")
    code, caret = lines[at + 1], lines[at + 2]
    assert code == "  do_ptr += b * stride_dob + h * stride_qh"
    assert code[caret.index("^") :] == "stride_qh"
    assert caret.strip() == "^" * len("stride_qh")
    assert lines[at + 4] == "  fix: stride_qh -> stride_doh"
    assert "  read 4 kernels by the names of their parameters; no kernel was run" in lines


def test_the_json_holds_each_finding_and_every_kernel(mine):
    ran = run(f"lint {mine}:lazy_backward --json -")
    document = json.loads(ran.out)
    assert ran.code == 1
    assert (document["schema"], document["verdict"]) == ("gradprobe.lint/2", "findings")
    assert [finding["line"] for finding in document["findings"]] == [145, 203, 275]
    assert {finding["fix"] for finding in document["findings"]} == {"stride_qh -> stride_doh"}
    assert document["kernels"] == [
        "lazy_forward_kernel", "lazy_preprocess_kernel", "lazy_dq_kernel", "lazy_dkdv_kernel",
    ]  # fmt: skip


def test_right_kernels_are_clean_with_what_was_read():
    ran = run("lint flash")
    assert ran.code == 0
    assert ran.out.splitlines() == [
        "CLEAN  no pointer advances by a stride that is called another tensor's (flash)",
        "  read 4 kernels by the names of their parameters; no kernel was run",
    ]


def test_kernels_whose_names_tell_nothing_are_partly_read_and_the_verdict_says_so(tmp_path):
    kernel = SOURCE[: SOURCE.index("def launch")].replace("stride_do", "stride_x")
    (tmp_path / "alone.py").write_text(kernel)
    ran = run(f"lint {tmp_path}/alone.py")
    assert ran.code == 0
    assert ran.out.startswith(
        "PARTLY READ  no pointer advances by a stride that is called another tensor's"
    )
    assert "whose names tell no tensor: do_ptr of touch_kernel" in ran.out


@pytest.mark.parametrize("word", ["sdpa", "{}/empty.py"])
def test_where_nothing_is_read_nothing_is_clean(word, tmp_path):
    (tmp_path / "empty.py").write_text("x = 1\n")
    ran = run(f"lint {word.format(tmp_path)}")
    assert (ran.code, ran.out) == (3, "")
    assert "read" in ran.err


def test_words_that_name_nothing_and_files_that_fail_to_import_have_their_exit_codes(tmp_path):
    (tmp_path / "broken.py").write_text("import nowhere_to_be_found\n")
    assert run(f"lint {tmp_path}/nofile.py").code == 2
    assert run("lint lazy --kv-heads 1").code == 2
    assert run("lint nothing").code == 2
    broken = run(f"lint {tmp_path}/broken.py")
    assert broken.code == 3
    assert "nowhere_to_be_found" in broken.err


def test_a_pipe_gets_no_colours_and_a_narrow_terminal_keeps_the_caret_under_the_name(mine):
    assert "\x1b" not in run(f"lint {mine}").out
    seen = run_on_terminal(f"lint {mine}", columns=40, NO_COLOR="1").out
    assert all(len(line) <= 42 for line in seen.splitlines() if line.startswith("  do_ptr"))
    code, caret = next(
        (line, below)
        for line, below in zip(seen.splitlines(), seen.splitlines()[1:], strict=False)
        if "^" in below
    )
    assert code[caret.index("^") : caret.rindex("^") + 1] == "stride_qh"
