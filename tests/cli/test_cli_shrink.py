"""`gradprobe shrink`: the smallest case that fails in the same way, what it writes, keeps and says."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command import ROOT, SMALL, run, run_process
from tests.cli.written_targets import CHANGES, SOFTMAX, WRAPPED, write_targets

pytestmark = pytest.mark.usefixtures("without_causes")

CASE = "--batch 2 --heads 3 --seqlen 20 --head-dim 8"
# For what is done with the case that the search ends at.
NEAR = "--batch 1 --heads 2 --seqlen 4 --head-dim 2"
DOUBLED = (
    "gradprobe check soft.py:doubled_dq --batch 1 --heads 2 --seqlen 2 --head-dim 1 --runs contiguous"
)  # fmt: skip


@pytest.fixture(scope="module")
def shrunken(tmp_path_factory):
    """A folder in which doubled_dq was shrunk from NEAR."""
    folder = tmp_path_factory.mktemp("shrunken")
    write_targets(folder)
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        assert run(f"shrink soft.py:doubled_dq {NEAR}").code == 1
    return folder


@pytest.fixture
def near(folder, shrunken):
    """What that wrote and kept, as if it had been done in the test's folder."""
    (folder / ".gradprobe").mkdir()
    for file in (shrunken / ".gradprobe").iterdir():
        (folder / ".gradprobe" / file.name).write_text(
            file.read_text().replace(str(shrunken), str(folder))
        )


def script_ends(file, folder):
    """The exit code and the last line of a script in a process of its own, in another folder."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ran = subprocess.run(
        [sys.executable, file.resolve()],
        cwd=folder,
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    return ran.returncode, (ran.stdout + ran.stderr).strip().splitlines()[-1]


def pytest_ends(file, folder):
    """The same of a test."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", file.resolve()],
        cwd=folder, capture_output=True, text=True, env=environment, check=False,
    )  # fmt: skip
    return ran.returncode, ran.stdout.strip().splitlines()[-1]


@pytest.mark.usefixtures("with_causes")
def test_the_verdict_stands_first_then_the_place_what_it_takes_and_how_to_repeat_it():
    ran = run(f"shrink soft.py:doubled_dq {CASE}", COLUMNS="200")
    lines = ran.out.splitlines()
    assert ran.code == 1
    assert lines[0].startswith(
        "SHRUNK  from batch=2 heads=3 seqlen=20 head-dim=8 layout=contiguous and distinct and do=expanded "
        "to batch=1 heads=2 seqlen=2 head-dim=1 layout=contiguous, in "
    )
    assert lines[1].startswith("FIRST MISMATCH dQ batch=0 head=1 row=0 col=0 ")
    assert lines[2] == "  fails in the same way: dQ first, wrong numbers; head 0 is right"
    assert lines[3].startswith(
        "  heads 2: with 1 head it does not run: target 'soft.py:doubled_dq' raised IndexError "
    )
    assert lines[-4:] == [
        "  seqlen 2: with seqlen 1 it matches",
        "  script: .gradprobe/shrunk.py",
        "  test: .gradprobe/test_shrunk.py",
        f"  again: {DOUBLED}",
    ]
    assert "tried, still so with 1 batch: batch=1 heads=3" in ran.err


def test_the_command_line_that_it_prints_fails_with_the_same_greppable_line():
    ran = run("shrink soft.py:nan_in_dk --batch 1 --heads 2 --seqlen 5 --head-dim 4")
    again = ran.out.splitlines()[-1].partition("again: gradprobe ")[2]
    checked = run(again)
    assert checked.code == 1
    assert checked.first_mismatches == ran.first_mismatches
    assert "--seqlen 4 --head-dim 3" in again


def test_a_case_that_matches_is_nothing_to_shrink():
    ran = run(f"shrink soft.py:backward {SMALL} --json found.json")
    assert ran.code == 0
    assert ran.out.startswith(
        "MATCH  nothing to shrink: it matches (soft.py:backward, batch=1 heads=2 seqlen=20 "
    )
    document = json.loads(Path("found.json").read_text())
    assert (document["verdict"], document["shrink"]["tries"]) == ("match", 0)
    assert [run["verdict"] for run in document["runs"]] == ["match"] * 3
    assert not Path(".gradprobe/shrunk.py").exists()


def test_without_words_the_last_check_is_shrunk():
    run(f"check soft.py:doubled_dq {NEAR}")
    ran = run("shrink")
    assert ran.code == 1
    assert ran.err.startswith(
        f"gradprobe: as in the last check here: gradprobe check soft.py:doubled_dq {NEAR}\n"
    )
    assert ran.out.splitlines()[-1] == f"  again: {DOUBLED}"


@pytest.mark.usefixtures("near")
def test_the_script_fails_now_and_passes_once_the_target_is_right(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    code, said = script_ends(Path(".gradprobe/shrunk.py"), tmp_path / "elsewhere")
    assert code == 1
    assert said.startswith("AssertionError: dQ[0, 1, 0, 0] is ")
    Path("soft.py").write_text(SOFTMAX + WRAPPED.format(name="doubled_dq", change=""))
    ended = script_ends(Path(".gradprobe/shrunk.py"), tmp_path / "elsewhere")
    assert ended == (0, "right: the fault is gone")


@pytest.mark.usefixtures("near")
@pytest.mark.parametrize(
    "change", ['results["dQ"][:, 1] *= 2', pytest.param("", marks=pytest.mark.nightly)]
)
def test_the_test_fails_now_and_passes_once_the_target_is_right(tmp_path, change):
    (tmp_path / "elsewhere").mkdir()
    Path("soft.py").write_text(SOFTMAX + WRAPPED.format(name="doubled_dq", change=change))
    code, said = pytest_ends(Path(".gradprobe/test_shrunk.py"), tmp_path / "elsewhere")
    assert (code, ("1 failed" if change else "1 passed") in said) == (1 if change else 0, True)


def test_the_script_names_no_part_of_gradprobe():
    run(f"shrink soft.py:doubled_dq {NEAR} --script here.py --test test_here.py")
    source = Path("here.py").read_text()
    assert "import gradprobe" not in source
    assert "from gradprobe" not in source
    assert "from gradprobe.testing import" in Path("test_here.py").read_text()


@pytest.mark.nightly
def test_a_forward_is_shrunk_through_autograd_and_its_script_differentiates_it_too():
    Path("forward.py").write_text(
        "def attention(q, k, v, *, scale, is_causal=False):\n"
        "    s = scale * q @ k.mT\n"
        "    s[:, 1:] *= 2\n"
        "    return s.softmax(-1) @ v\n"
    )
    assert run(f"shrink forward.py:attention {NEAR}").code == 1
    code, said = script_ends(Path(".gradprobe/shrunk.py"), Path.cwd())
    assert (code, said[:18]) == (1, "AssertionError: O[")
    Path("forward.py").write_text(Path("forward.py").read_text().replace("*= 2", "*= 1"))
    assert script_ends(Path(".gradprobe/shrunk.py"), Path.cwd())[0] == 0


def test_the_document_is_the_report_of_the_small_case_with_what_was_done():
    ran = run(f"shrink soft.py:doubled_dq {CASE} --json -")
    document = json.loads(ran.out)
    assert (ran.code, document["schema"], document["verdict"]) == (
        1,
        "gradprobe.report/2",
        "mismatch",
    )
    assert (document["case"]["heads"], document["case"]["seqlen_q"]) == (2, 2)
    assert document["first_mismatch"]["intermediate"] == "dQ"
    assert document["reproduce"] == DOUBLED
    about = document["shrink"]
    assert (about["from"]["heads"], about["from"]["runs"]) == (
        3,
        ["contiguous", "distinct", "do=expanded"],
    )
    assert (about["complete"], about["script"]) == (True, ".gradprobe/shrunk.py")
    assert about["tries"] > 5


def test_a_failure_of_another_kind_on_the_way_is_told_and_not_followed():
    change = (
        'results["dV"] = results["dV"] * (1 if q.shape[2] < 9 else 2)\n'
        '    results["dQ"] *= 1 if q.shape[2] > 8 else 3'
    )
    Path("two.py").write_text(SOFTMAX + WRAPPED.format(name="two", change=change))
    ran = run(f"shrink two.py:two {SMALL}", COLUMNS="200")
    assert ran.first_mismatches[0].startswith("FIRST MISMATCH dV ")
    assert "--seqlen 9" in ran.out
    assert (
        "  another failure was seen on the way: dQ first, wrong numbers (batch=1 heads=1 seqlen="
        in ran.out
    )
    assert "  seqlen 9: with seqlen 8 it fails in another way: dQ first, wrong numbers" in ran.out


def test_tries_that_are_used_up_are_said():
    ran = run(f"shrink soft.py:doubled_dq {CASE} --tries 3")
    assert ran.code == 1
    assert "  not every simpler case was tried: --tries 3 are used up" in ran.out.splitlines()


def test_an_option_that_the_fault_needs_stays_and_the_others_go():
    change = 'results["dQ"] = results["dQ"] * (2 if causal and bias is not None else 1)'
    wrapped = WRAPPED.replace("causal=False):", "causal=False, bias=None):").replace(
        "causal=causal)", "causal=causal, bias=bias)"
    )
    Path("needy.py").write_text(SOFTMAX + wrapped.format(name="needy", change=change))
    ran = run(f"shrink needy.py:needy {NEAR} --causal --bias --pattern large --seed 4 --scale 0.5")
    last = ran.out.splitlines()[-1]
    assert "--causal" in last
    assert "--bias" in last
    assert not {"--pattern", "--seed", "--scale"} & set(last.split())
    assert "  causal: without it it matches" in ran.out.splitlines()


@pytest.mark.nightly
def test_a_crash_is_shrunk_in_processes_of_their_own_and_is_no_mismatch():
    Path("crash.py").write_text(
        SOFTMAX
        + WRAPPED.format(
            name="crash", change="import os\n    q.shape[2] > 4 and causal and os._exit(7)"
        )
    )
    ran = run_process(
        "shrink crash.py:crash --batch 1 --heads 1 --seqlen 9 --head-dim 1 --causal --isolate"
    )
    assert ran.code == 3
    assert ran.out.splitlines()[-1] == (
        "  again: gradprobe check crash.py:crash --batch 1 --heads 1 --seqlen 5 --head-dim 1 --causal "
        "--runs contiguous --isolate"
    )
    assert "no script and no test" in ran.out


@pytest.mark.nightly
def test_in_processes_of_their_own_the_small_case_is_the_same():
    plain = run(f"shrink soft.py:doubled_dq {SMALL}")
    alone = run_process(f"shrink soft.py:doubled_dq {SMALL} --timeout 60")
    assert alone.code == 1
    assert alone.out.splitlines()[-1] == plain.out.splitlines()[-1]


def test_what_cannot_be_shrunk_is_refused():
    assert "doubled_dq" in CHANGES
    ran = run("shrink soft.py:doubled_dq --inputs values.pt")
    assert ran.code == 2
    assert "--inputs: only a case whose values are drawn can be made smaller" in ran.err
    assert run("shrink soft.py:nowhere").code == 2
    assert run(f"shrink soft.py:raising {SMALL}").code == 3
    assert run(f"shrink soft.py:doubled_dq {SMALL} --script no/such/folder.py").code == 2
