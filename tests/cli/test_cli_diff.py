"""`diff NAME` repeats the last check of the folder, draws the error map and lists the wrong rows."""

import json
import re

import pytest

from tests.cli.command import SMALL, run
from tests.sampling import sampled

FAILING = f"check soft.py:wrong_delta {SMALL}"
REPEATED = f"as in the last check here: gradprobe {FAILING}"

pytestmark = pytest.mark.usefixtures("made_once")


def test_diff_repeats_the_last_check_and_says_so_in_its_first_line():
    assert run(FAILING).code == 1
    ran = run("diff delta")
    lines = ran.out.splitlines()
    assert ran.code == 1
    assert lines[:3] == [
        REPEATED,
        "layout contiguous",
        "delta  batch 0, head 1: 1 of 20 elements wrong",
    ]


def read_again(folder, words):
    """What diff shows from the last report, and whether the target was run for it."""
    (folder / "ran").unlink(missing_ok=True)
    ran = run(words)
    return ran, (folder / "ran").exists()


def test_diff_reads_the_last_report_and_runs_again_only_for_what_is_not_in_it(folder):
    (folder / "told.py").write_text(
        "import soft\n\ndef f(q, k, v, do, *, scale):\n    open('ran', 'w').close()\n"
        "    return soft.wrong_delta(q, k, v, do, scale=scale)\n"
    )
    assert run(f"check told.py:f {SMALL}").code == 1
    kept, was_run = read_again(folder, "diff delta")
    assert (kept.code, was_run) == (1, False)
    assert re.fullmatch(r"gradprobe: from the report of \d\d:\d\d, nothing was run\n", kept.err)
    other, was_run = read_again(folder, "diff delta --at 0,0")
    assert (other.code, was_run) == (1, True)
    assert "gradprobe: ran again: the close-up of delta is not in the report of " in other.err
    (folder / "told.py").write_text((folder / "told.py").read_text() + "\n# edited\n")
    edited, was_run = read_again(folder, "diff delta")
    assert was_run
    assert "is not of these sources" in edited.err
    assert edited.out == kept.out


def test_a_failing_check_after_a_good_one_leaves_the_good_one_to_repeat():
    run(FAILING)
    assert run(f"check soft.py:raising {SMALL}").code == 3
    assert run("diff delta").out.splitlines()[0] == REPEATED


def test_options_given_to_diff_override_those_of_the_last_check():
    run(FAILING)
    ran = run("diff delta --seqlen 30 --seed 2 --json -")
    case = json.loads(ran.out)["case"]
    assert (case["batch"], case["heads"], case["seqlen_q"], case["seed"]) == (1, 2, 30, 2)
    words = (
        "gradprobe check soft.py:wrong_delta --batch 1 --heads 2 --seqlen 30 --head-dim 8 --seed 2"
    )
    assert ran.err == f"as in the last check here: {words}\n"


def test_another_target_than_that_of_the_last_check_starts_afresh():
    run(FAILING)
    ran = run(f"diff delta soft.py:backward {SMALL}")
    assert ran.code == 0
    assert ran.out.splitlines()[0] == "layout contiguous"


def test_the_same_target_as_in_the_last_check_repeats_its_options():
    run(FAILING)
    assert run("diff delta soft.py:wrong_delta").out.splitlines()[0] == REPEATED


def test_without_a_last_check_diff_runs_what_it_is_given():
    ran = run(f"diff dQ soft.py:doubled_dq {SMALL}")
    assert ran.code == 1
    assert ran.out.splitlines()[:2] == [
        "layout contiguous",
        "dQ  batch 0, head 1: 160 of 160 elements wrong",
    ]


@pytest.mark.parametrize(
    ("last", "elements"),
    [
        (f"check lazy {SMALL} --runs contiguous", "400"),
        pytest.param("", "5,184", marks=pytest.mark.nightly),
    ],
)
def test_diff_ds_works_with_no_other_word(last, elements):
    assert not last or run(last).code == 0
    ran = run("diff dS")
    assert ran.code == 0
    assert "dS  batch " in ran.out
    assert f"all {elements} elements within budget" in ran.out


@sampled(
    "text",
    [
        "", "{", "null", "[]", "3", '"lazy"', "{}", '{"target": "soft.py:wrong_delta"}',
        '{"version": 9, "target": "lazy", "family": null, "reference": null, "options": {}}',
        '{"target": "lazy", "family": null, "reference": null, "options": {"hats": 4}}',
        '{"target": "lazy", "family": null, "reference": null, "options": []}',
        '{"target": "lazy", "family": null, "reference": null, "options": {"heads": "four"}}',
        '{"target": "lazy", "family": null, "reference": null, "options": {"layout": "all=distinct"}}',
        '{"target": 5, "family": null, "reference": null, "options": {}}',
        '{"target": "lazy", "family": 1, "reference": null, "options": {}}',
    ], push=5)  # fmt: skip
def test_a_last_check_that_is_damaged_or_of_another_version_is_repeated_by_nobody(text, folder):
    run(FAILING)
    (folder / ".gradprobe" / "last.json").write_text(text)
    ran = run(f"diff dQ soft.py:backward {SMALL}")
    assert ran.code == 0
    assert re.fullmatch(
        r"gradprobe: \.gradprobe/last\.json is damaged: .*: none of its options is repeated\n",
        ran.err,
    )
    assert "last check" not in ran.out
    for command in ("diff dQ", "fix", "shrink"):
        ran = run(f"{command} {SMALL}")
        assert (ran.code, ran.out) == (2, "")
        assert ran.err.startswith("gradprobe: .gradprobe/last.json is damaged: ")


def test_a_last_check_that_is_not_text_is_damaged(folder):
    run(FAILING)
    (folder / ".gradprobe" / "last.json").write_bytes(b"\xff\xfe\x00")
    assert run("diff dQ --json damage.json").code == 2
    assert "is damaged" in json.loads((folder / "damage.json").read_text())["error"]["message"]


@pytest.mark.parametrize(
    "damage", [{"runs": 3}, {"close_ups": [{}]}, {"schema": "gradprobe.report/9"}]
)
def test_a_last_report_that_is_damaged_is_no_check_that_was_not_made(damage, folder):
    run(FAILING)
    file = folder / ".gradprobe" / "last.json"
    kept = json.loads(file.read_text())
    file.write_text(json.dumps(kept | {"report": kept["report"] | damage}))
    ran = run("diff dQ")
    assert (ran.code, ran.out.count("\n")) == (2, 1)
    assert "gradprobe: .gradprobe/last.json is damaged: " in ran.err
    assert "gradprobe check writes it anew" in ran.err


def test_a_folder_that_cannot_be_written_fails_no_check(folder):
    (folder / ".gradprobe").write_text("a file where the folder would be")
    ran = run(FAILING)
    assert (ran.code, ran.err) == (1, "")


def test_the_folder_of_the_last_check_is_kept_out_of_git(folder):
    run(FAILING)
    assert (folder / ".gradprobe" / ".gitignore").read_text() == "*\n"


def test_the_error_map_marks_the_one_wrong_tile():
    # P is wrong at row 2, column 9; tiles are 32 rows by 16 keys, and keys beyond the mask stay blank.
    ran = run(f"diff P soft.py:leaky_p {SMALL} --seqlen 70")
    lines = ran.out.splitlines()
    start = next(at for at, line in enumerate(lines) if "worst error of each 32 x 16 tile" in line)
    assert [line.split()[2] for line in lines[start + 1 : start + 4]] == ["█····", "·····", "·····"]
    assert "  wrong rows: 2 (1 of 70)" in lines


def test_the_error_map_leaves_masked_tiles_blank():
    ran = run(f"diff dS soft.py:backward {SMALL} --seqlen 70 --causal")
    lines = ran.out.splitlines()
    start = next(at for at, line in enumerate(lines) if "worst error of each 32 x 16 tile" in line)
    assert [line[12:].rstrip() for line in lines[start + 1 : start + 4]] == ["··", "····", "·····"]
    assert ran.code == 0


def test_wrong_rows_are_listed_with_the_actual_beside_the_expected():
    ran = run(f"diff dV soft.py:dv_without_a_head {SMALL}")
    lines = ran.out.splitlines()
    assert "  wrong rows: 0-19 (20 of 20)" in lines
    start = next(at for at, line in enumerate(lines) if line.split()[:2] == ["row", "wrong"])
    first = lines[start + 1].split()
    assert (first[0], first[1], first[3]) == ("0", "8", "0")
    assert float(first[4]) != 0
    assert "  10 more wrong rows" in lines


def test_the_cause_stands_below_what_is_wrong_and_below_nothing_that_is_right():
    ran = run(f"diff dV soft.py:dv_without_a_head {SMALL}")
    below = ran.out.partition("more wrong rows")[2]
    assert any(
        line.startswith(("CAUSE", "NO HYPOTHESIS FITS", "CONSISTENT WITH"))
        for line in below.splitlines()
    )
    right = run(f"diff dQ soft.py:dv_without_a_head {SMALL}").out
    assert "all 160 elements within budget" in right
    assert "CAUSE" not in right


def test_at_shows_the_head_that_was_asked_for_and_exits_by_the_whole_check():
    ran = run(f"diff dQ soft.py:doubled_dq {SMALL} --at 0,0")
    assert ran.code == 1
    assert "dQ  batch 0, head 0: all 160 elements within budget" in ran.out


def test_an_intermediate_is_known_whatever_its_case():
    assert "dQ  batch 0, head 1: 160 of 160" in run(f"diff dq soft.py:doubled_dq {SMALL}").out


@sampled(
    "name",
    ["O", "P", "dP", "dS", "delta", "dQ", "dK", "dV", "dBias", "dTau"],
    push=["dS", "delta", "dBias"],
)
def test_every_exposed_intermediate_has_a_close_up_that_fits_80_columns(name):
    ran = run(f"diff {name} lazily.py:backward {SMALL}", COLUMNS="80")
    assert ran.code == 0
    assert [line for line in ran.out.splitlines() if len(line) > 80] == []


def test_the_line_about_the_last_check_stays_out_of_json_on_stdout():
    run(FAILING)
    ran = run("diff delta --json -")
    assert json.loads(ran.out)["close_up"]["intermediate"] == "delta"
    assert ran.err.splitlines()[0] == REPEATED
