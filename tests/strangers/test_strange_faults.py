"""Kernels in styles of their own match, and of faults that no list holds none is missed or called something else."""

import ast
from itertools import islice

import pytest

from gradprobe.diagnosis.dataflow import suspects
from gradprobe.diagnosis.explainers.diagnoses import diagnoses_of
from gradprobe.diagnosis.follow import followed_run
from gradprobe.model.allowance import Allowance, Client
from gradprobe.model.assignment import parse_layout
from gradprobe.model.layout_run import MATCH, MISMATCH
from gradprobe.probing.experiment import experiment_of
from gradprobe.runtime.backend import prepare_backend
from gradprobe.source.kernel_file import KernelFile
from gradprobe.source.rewrites.candidate import Fault
from gradprobe.source.rewrites.candidates import candidates_of
from gradprobe.targets.find import find_target
from tests.cases import softmax_case
from tests.probe import probe
from tests.strangers.faults import FAULTS, STRANGERS, file_of

SHORT = {"seqlen_q": 28, "seqlen_k": 20, "heads": 2, "kv_heads": 1}
# One whole tile and a tail, laid as no program would lay them by chance.
SMALL = {"head_dim": 8, "causal": True, "layouts": (("all", "distinct"),)}


@pytest.mark.parametrize("name", STRANGERS)
def test_a_kernel_of_another_style_matches(name):
    function, options = STRANGERS[name]
    lengths = {option: 20 for option in options if option.startswith("seqlen")}
    fewer = {"heads": 2, "kv_heads": 1} if "kv_heads" in options else {}
    case = softmax_case(**options | lengths | fewer | SMALL)
    assert probe(case, find_target(f"{file_of(name)}:{function}")).verdict == MATCH


@pytest.mark.nightly
@pytest.mark.parametrize("name", STRANGERS)
@pytest.mark.parametrize("causal", [False, True])
def test_it_matches_in_every_default_layout_but_where_rows_see_no_key(name, causal):
    function, options = STRANGERS[name]
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
    fault = next(each for each in FAULTS if each.name == name)
    copy = tmp_path / f"{name}.py"
    copy.write_text(fault.plant())
    case = softmax_case(**{**fault.options, "heads": 1, "head_dim": 8, **options})
    prepare_backend("auto")
    begun = experiment_of(case, find_target(f"{copy}:{fault.function}"))
    run = followed_run(begun, (parse_layout("contiguous"),))
    sure = [one for one in suspects(run, wrong.split()) if one.is_sure]
    assert [(one.kind, one.name) for one in sure][:1] == [(kind, of)]
    assert fault.lines & {where.line for where in diagnoses_of(sure[:1])[0].where}


# A factor of another branch, and a statement that is missing: no row of the table says either.
UNDONE_BY_NO_ROW = ("sum_not_rescaled_in_whole_tiles", "delta_of_the_first_head_of_the_group")
UNDONE = [fault for fault in FAULTS if fault.name not in UNDONE_BY_NO_ROW]


def program(text):
    return ast.dump(ast.parse(text))


@pytest.mark.parametrize("fault", UNDONE, ids=lambda fault: fault.name)
def test_the_edit_that_undoes_a_fault_is_among_the_first(fault):
    """Of 16: at a second each on a core, what two cores try in a third of the time that a check takes for edits."""
    right = set(map(program, fault.mended))
    found = candidates_of(KernelFile("mine.py", fault.plant()), [Fault(min(fault.lines))])
    assert any(program(one.text) in right for one in islice(found, 16))


@pytest.mark.nightly
@pytest.mark.parametrize("fault", UNDONE, ids=lambda fault: fault.name)
def test_of_a_fault_that_no_list_holds_the_line_is_told_and_an_edit_tried(fault, tmp_path):
    copy = tmp_path / f"{fault.name}.py"
    copy.write_text(fault.plant())
    target, client = find_target(f"{copy}:{fault.function}"), Client(budget=lambda: Allowance(60))
    report = probe(softmax_case(**fault.options), target, client=client)
    assert report.verdict == MISMATCH
    assert fault.lines & {where.line for where in report.diagnoses[0].where}
    edit = next(each.edit for each in report.diagnoses if each.edit is not None)
    assert edit.matches
    new = {line[1:].strip() for line in edit.diff.splitlines()[2:] if line.startswith("+")}
    assert any(new <= {line.strip() for line in text.splitlines()} for text in fault.mended)
