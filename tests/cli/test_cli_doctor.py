import json

from tests.cli.command import ROOT, run

DELTA = (ROOT / "examples" / "delta.py").read_text()
CASE = "--heads 2 --seqlen 16 --head-dim 8"
SMALL = f"soft.py:backward {CASE} --batch 1"


def test_a_wrong_stride_is_red_first_where_do_moves_between_two_heads(folder):
    (folder / "mine.py").write_text(DELTA)
    ran = run(f"doctor mine.py:delta {CASE} --json out.json")
    assert ran.code == 1
    first = 'RED  first at "2 heads, dO moved"; 2 of 2 rungs below it green (mine.py:delta)'
    assert ran.out.splitlines()[0] == first
    assert "\n  in full: gradprobe check mine.py:delta " in ran.out
    assert len(ran.first_mismatches) == 1
    told = json.loads((folder / "out.json").read_text())
    assert (told["schema"], told["verdict"], told["first_bad"]["rung"]) == (
        "gradprobe.doctor/1", "red", "2 heads, dO moved",
    )  # fmt: skip
    assert [rung["state"] for rung in told["rungs"][:4]] == ["green", "green", "red", "not run"]
    assert told["closer"] == []


def test_a_check_with_empty_caches_repeats_itself(folder):
    assert run(f"check {SMALL} --runs contiguous --fresh --json out.json").code == 0
    assert json.loads((folder / "out.json").read_text())["reproduce"].endswith(" --fresh")
