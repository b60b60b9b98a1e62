import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command import ROOT, SMALL, run
from tests.cli.written_targets import SOFTMAX, WRAPPED

pytestmark = pytest.mark.usefixtures("without_causes")

CASE = "--batch 2 --heads 3 --seqlen 20 --head-dim 8"
# For what is done with the case that the search ends at.
NEAR = "--batch 1 --heads 2 --seqlen 4 --head-dim 2"
DOUBLED = (
    "gradprobe check soft.py:doubled_dq --batch 1 --heads 2 --seqlen 2 --head-dim 1 --runs contiguous"
)  # fmt: skip


def ends(folder, *words, **environment):
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ran = subprocess.run(
        [sys.executable, *words], cwd=folder, capture_output=True, text=True, check=False, env=kept | environment
    )  # fmt: skip
    return ran.returncode, (ran.stdout + ran.stderr).strip().splitlines()[-1]


@pytest.mark.usefixtures("with_causes")
def test_the_verdict_stands_first_then_the_place_what_it_takes_and_how_to_repeat_it():
    ran = run(f"shrink soft.py:doubled_dq {CASE} --json found.json", COLUMNS="200")
    lines = ran.out.splitlines()
    assert ran.code == 1
    assert lines[0].startswith(
        "SHRUNK  from batch=2 heads=3 seqlen=20 head-dim=8 layout=contiguous and distinct and do=expanded "
        "to batch=1 heads=2 seqlen=2 head-dim=1 layout=contiguous, in "
    )
    assert lines[1].startswith("FIRST MISMATCH dQ batch=0 head=1 row=0 col=0 ")
    assert lines[2] == "  fails in the same way: dQ first, wrong numbers; head 0 is right"
    assert lines[3].startswith(
        "  heads=2: with heads=1 it does not run: target 'soft.py:doubled_dq' raised IndexError "
    )
    assert lines[-3:] == [
        "  seqlen=2: with seqlen=1 it matches",
        "  test: .gradprobe/test_shrunk.py",
        f"  again: {DOUBLED}",
    ]
    assert "tried, still so with batch=1: batch=1 heads=3" in ran.err
    document = json.loads(Path("found.json").read_text())
    assert (document["schema"], document["verdict"]) == ("gradprobe.report/2", "mismatch")
    assert (document["case"]["heads"], document["case"]["seqlen_q"]) == (2, 2)
    assert document["reproduce"] == DOUBLED
    assert (document["shrink"]["from"]["heads"], document["shrink"]["complete"]) == (3, True)
    ran = run(f"shrink soft.py:doubled_dq {CASE} --tries 3")
    assert ran.code == 1
    assert "  not every simpler case was tried: --tries 3 are used up" in ran.out.splitlines()


def test_a_case_that_matches_is_nothing_to_shrink():
    ran = run(f"shrink soft.py:backward {SMALL} --json found.json")
    assert (ran.code, ran.out[:37]) == (0, "MATCH  nothing to shrink: it matches ")
    document = json.loads(Path("found.json").read_text())
    assert (document["verdict"], document["shrink"]["tries"]) == ("match", 0)
    assert not Path(".gradprobe/test_shrunk.py").exists()


@pytest.mark.nightly
def test_its_test_fails_now_and_passes_once_the_target_is_right(folder, tmp_path):
    checked, ran = run(f"check soft.py:doubled_dq {NEAR}"), run("shrink")
    told = f"gradprobe: as in the last check here: gradprobe check soft.py:doubled_dq {NEAR}\n"
    assert (ran.code, ran.err[: len(told)]) == (1, told)
    assert ran.out.splitlines()[-1] == f"  again: {DOUBLED}"
    assert checked.first_mismatches != []
    assert run(DOUBLED.removeprefix("gradprobe ")).first_mismatches == ran.first_mismatches
    (tmp_path / "elsewhere").mkdir()
    test = str(Path(".gradprobe/test_shrunk.py").resolve())
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", test]
    code, said = ends(tmp_path / "elsewhere", *words, PYTHONPATH=str(ROOT))
    assert (code, "1 failed" in said) == (1, True)
    Path("soft.py").write_text(SOFTMAX + WRAPPED.format(name="doubled_dq", change=""))
    code, said = ends(tmp_path / "elsewhere", *words, PYTHONPATH=str(ROOT))
    assert (code, "1 passed" in said) == (0, True)
