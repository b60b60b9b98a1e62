"""Dots that were compiled coarser than declared are told apart from what is wrong."""

from dataclasses import replace

import pytest

from gradprobe.diagnosis.behaviour import FurtherRuns, multiplies_coarser
from gradprobe.diagnosis.causes import failing_layouts
from gradprobe.probing.experiment import experiment_of
from gradprobe.runtime.arithmetic import Dots
from tests.cases import softmax_case
from tests.diagnosis.backward import backward_with
from tests.probe import probe


@pytest.mark.parametrize(("factor", "is_enough"), [(1 + 2**-12, True), (2, False)])
def test_dots_that_were_compiled_coarser_than_declared_are_the_cause_where_they_are_enough(
    tmp_path, factor, is_enough
):
    case, kernel = (
        softmax_case(batch=1, heads=1, seqlen=20, head_dim=16, recover=False),
        backward_with(tmp_path, f"dk = dk * {factor}"),
    )
    dots = (Dots("tf32", "dkdv_kernel", str(tmp_path / "kernel.py"), (7,)),)
    of = replace(experiment_of(case, kernel), backends=frozenset({"triton"}), dots=dots)
    failing = [run for run in probe(case, kernel, why=False).runs if not run.matches]
    one = failing_layouts(of, failing)[0]
    again = FurtherRuns(of, one.run.assigned, one.seen)
    declared = replace(of, case=replace(case, device="cuda", dots="ieee"))
    found = multiplies_coarser(replace(again, experiment=declared))
    assert bool(found) == is_enough
    undeclared = replace(declared, case=replace(declared.case, dots=None))
    assert multiplies_coarser(replace(again, experiment=undeclared)) is None
    if found:
        where = found.where[0]
        assert (found.fault, where.line, where.code[:9]) == ("precision/tf32", 7, "ds = p * ")
        assert found.evidence[0] == "tf32 in dkdv_kernel (kernel.py:7)"
