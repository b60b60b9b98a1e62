import json

import pytest

from tests.cli.command import SMALL, run

FAILING = f"check soft.py:wrong_delta {SMALL}"
REPEATED = f"as in the last check here: gradprobe {FAILING}"

pytestmark = pytest.mark.usefixtures("without_causes")


def test_diff_repeats_the_last_good_check_says_so_first_and_takes_other_options_and_targets():
    run(FAILING)
    for words in ("diff delta", "diff delta soft.py:wrong_delta"):
        ran = run(words)
        assert ran.code == 1
        place = "delta  batch 0, head 1: 1 of 20 elements wrong"
        assert ran.out.splitlines()[:2] == [REPEATED, f"{place} (contiguous)"]
    ran = run("diff delta --seqlen 30 --seed 2 --json -")
    document = json.loads(ran.out)
    case = document["case"]
    assert (case["batch"], case["heads"], case["seqlen_q"], case["seed"]) == (1, 2, 30, 2)
    assert document["close_up"]["intermediate"] == "delta"
    words = "gradprobe check soft.py:wrong_delta --batch 1 --heads 2 --seqlen 30 --head-dim 8 --seed 2"
    assert ran.err == f"as in the last check here: {words}\n"
    assert run(f"check soft.py:raising {SMALL}").code == 3
    assert run("diff delta").out.splitlines()[0] == REPEATED
    ran = run(f"diff delta soft.py:backward {SMALL}")
    assert (ran.code, ran.out.splitlines()[0][:25]) == (0, "delta  batch 0, head 1: a")


@pytest.mark.parametrize(
    "text",
    [
        b"null", b"\xff\xfe\x00", b"[" * 100_000,
        b'{"target": "lazy", "family": null, "reference": null, "options": {"heads": "four"}}',
        b'{"target": "lazy", "family": null, "reference": null, "options": {}, "report": 1}',
    ],
)  # fmt: skip
def test_a_last_check_that_is_damaged_or_of_another_version_is_repeated_by_nobody(text, folder):
    (folder / ".gradprobe").mkdir()
    (folder / ".gradprobe" / "last.json").write_bytes(text)
    ran = run(f"diff dQ soft.py:backward {SMALL}")
    assert ran.code == 0
    assert ran.err.startswith("gradprobe: .gradprobe/last.json is damaged: ")
    assert ran.err.endswith(": none of its options is repeated\n")
    (folder / ".gradprobe" / "last.json").write_bytes(text)
    for command in ("diff dQ", "fix", "shrink"):
        ran = run(f"{command} {SMALL} --json damage.json")
        assert (ran.code, ran.out) == (2, "")
        assert ran.err.startswith("gradprobe: .gradprobe/last.json is damaged: ")


def test_a_folder_that_cannot_be_written_fails_no_check(folder):
    (folder / ".gradprobe").write_text("a file where the folder would be")
    ran = run(FAILING)
    assert (ran.code, ran.err) == (1, "")


def map_of(ran):
    """The rows of the error map; tiles are 32 rows by 16 keys."""
    lines = ran.out.splitlines()
    start = next(
        at for at, line in enumerate(lines) if "worst error of each 32 x 16 tile" in line
    )
    return [line[12:].rstrip() for line in lines[start + 1 : start + 4]]


def test_the_error_map_marks_the_one_wrong_tile_and_leaves_masked_tiles_blank():
    # P is wrong at row 2, column 9.
    ran = run(f"diff P soft.py:leaky_p {SMALL} --seqlen 70")
    assert map_of(ran) == ["█····", "·····", "·····"]
    assert "  wrong rows: 2 (1 of 70)" in ran.out.splitlines()
    ran = run(f"diff dS soft.py:backward {SMALL} --seqlen 70 --causal")
    assert (ran.code, map_of(ran)) == (0, ["··", "····", "·····"])
