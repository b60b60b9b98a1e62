"""Kernels in styles of their own match, and of faults that no list holds none is missed or called something else."""

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
