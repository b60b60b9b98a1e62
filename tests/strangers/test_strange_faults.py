"""Kernels in styles of their own match, and of faults that no list holds none is missed or called something else."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gradprobe.diagnosis.dataflow import suspects
from gradprobe.diagnosis.explainers.diagnoses import diagnoses_of
from gradprobe.diagnosis.follow import followed_run
from gradprobe.model.assignment import parse_layout
from gradprobe.model.layout_run import MATCH
from gradprobe.probing.experiment import experiment_of
from gradprobe.runtime.backend import prepare_backend
from gradprobe.targets.find import find_target
from tests.cases import softmax_case
from tests.planted.planting import STRANGE, TARGETS, file_of
from tests.planted.strange_faults import STRANGE_FAULTS
from tests.probe import probe

SHORT = {"seqlen_q": 28, "seqlen_k": 20, "heads": 2, "kv_heads": 1}
# One whole tile and a tail, laid as no program would lay them by chance.
SMALL = {"head_dim": 8, "causal": True, "layouts": (("all", "distinct"),)}


@pytest.mark.parametrize("name", STRANGE)
def test_a_kernel_of_another_style_matches(name):
    function, options = TARGETS[name][1:]
    lengths = {option: 20 for option in options if option.startswith("seqlen")}
    fewer = {"heads": 2, "kv_heads": 1} if "kv_heads" in options else {}
    case = softmax_case(**options | lengths | fewer | SMALL)
    assert probe(case, find_target(f"{file_of(name)}:{function}")).verdict == MATCH


@pytest.mark.nightly
@pytest.mark.parametrize("name", STRANGE)
@pytest.mark.parametrize("causal", [False, True])
def test_it_matches_in_every_default_layout_but_where_rows_see_no_key(name, causal):
    function, options = TARGETS[name][1:]
    case = softmax_case(**options | {"causal": causal})
    report = probe(case, find_target(f"{file_of(name)}:{function}"))
    if causal and case.seqlen_q > case.seqlen_k:  # its first rows see no key: 0 / 0
        assert report.diagnoses[0].fault == "dead/nan"
    else:
        assert report.verdict == MATCH


# Of kinds that the dataflow tells apart: the smallest case, the results that are walked back from, the suspect.
SUSPECTS = [
    ("sum_not_rescaled_in_whole_tiles", {"seqlen": 40}, "O", "value", ""),
    ("ds_scaled_twice_on_the_diagonal", {"seqlen": 40}, "dK", "value", "dS^T Q"),
    ("dk_scaled_once_for_each_head_of_the_group", SHORT, "dK", "value", "dS^T Q"),
    # O is NaN in the rows that no store writes, which is no fault.
    ("rows_of_do_masked_by_the_number_of_keys", SHORT, "O dV", "masked", "do"),
]


@pytest.mark.parametrize(
    ("name", "options", "wrong", "kind", "of"), SUSPECTS, ids=[each[0] for each in SUSPECTS]
)
def test_the_dataflow_tells_the_line(name, options, wrong, kind, of, tmp_path):
    fault = next(each for each in STRANGE_FAULTS if each.name == name)
    copy = tmp_path / f"{name}.py"
    copy.write_text(fault.plant())
    _, function, small = TARGETS[fault.of]
    case = softmax_case(**{**small, "heads": 1, "head_dim": 8, **options})
    prepare_backend("auto")
    begun = experiment_of(case, find_target(f"{copy}:{function}"))
    run = followed_run(begun, (parse_layout("contiguous"),))
    sure = [one for one in suspects(run, wrong.split()) if one.is_sure]
    assert [(one.kind, one.name) for one in sure][:1] == [(kind, of)]
    assert fault.lines() & {where.line for where in diagnoses_of(sure[:1])[0].where}


BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.mark.nightly
@pytest.mark.skipif(not BENCHMARKS.is_dir(), reason="a checkout alone has the benchmarks")
def test_faults_of_a_kernel_in_a_folder_are_judged_checked_and_told(tmp_path):
    folder = tmp_path / "kernels" / "one-pass"
    folder.mkdir(parents=True)
    (folder / "one_pass.py").write_text(file_of("one_pass").read_text())
    words = "one_pass.py:one_pass --batch 1 --heads 2 --seqlen 20 --head-dim 8 --causal\n"
    (folder / "words").write_text(words)
    words = [folder.parent, "--faults", "2", "--json", tmp_path / "json"]
    command = [sys.executable, BENCHMARKS / "strangers.py", *words]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "one-pass: found 2, " in ended.stdout
    trials = json.loads((tmp_path / "json").read_text())
    told = {(trial["judged"], trial["found"]) for trial in trials}
    assert told == {("wrong", True), ("same", False)}
