"""What further runs tell: first calls, other draws, rows that see no key, and dots that were compiled coarser."""

from dataclasses import replace

import pytest
import torch

from gradprobe.diagnosis.behaviour import FurtherRuns, multiplies_coarser
from gradprobe.diagnosis.causes import failing_layouts
from gradprobe.inputs.draw import draw
from gradprobe.probing.experiment import experiment_of
from gradprobe.runtime.arithmetic import Dots
from tests.cases import softmax_case
from tests.diagnosis.backward import backward_with
from tests.emulated import softmax, target_of
from tests.probe import probe

SMALL_DRAWN = dict(batch=1, heads=2, seqlen=20, head_dim=8, recover=False, runs=((),))
FIRST = draw(softmax_case(**SMALL_DRAWN))["q"]


def doubled_on_the_first_draw(q, k, v, do, *, scale):
    results = softmax(q, k, v, do, scale=scale)
    dq = results["dQ"] * (2 if torch.equal(q, FIRST) else 1)
    return {"dQ": dq, "dK": results["dK"], "dV": results["dV"]}


def test_a_factor_that_another_draw_does_not_have_is_no_cause():
    report = probe(softmax_case(**SMALL_DRAWN), target_of(doubled_on_the_first_draw))
    assert report.verdict == "mismatch"
    assert not any(one.fault == "factor/dQ" for one in report.diagnoses)
    assert not any("by a fault of gradprobe" in words for words in report.known)


SMALL_DEAD = {**SMALL_DRAWN, "mask": "dead-rows"}


def with_nan(is_always):
    def backward(q, k, v, do, mask, *, scale):
        results = softmax(q, k, v, do, scale=scale, mask=mask)
        spoilt = 1.0 if mask.any(-1).all() and not is_always else torch.nan
        return {"dQ": results["dQ"], "dK": results["dK"] * spoilt, "dV": results["dV"]}

    return target_of(backward)


def test_nan_is_one_of_dead_rows_where_it_goes_once_every_row_sees_a_key():
    cause = probe(softmax_case(**SMALL_DEAD), with_nan(False)).diagnoses[0]
    said = "rows that see no key make dK NaN: exp(-inf - -inf), or 0 / 0"
    assert (cause.fault, cause.summary) == ("dead/nan", said)
    report = probe(softmax_case(**SMALL_DEAD), with_nan(True))
    assert report.verdict == "mismatch"
    assert "dead/nan" not in {one.fault for one in report.diagnoses}


@pytest.mark.parametrize(("factor", "is_enough"), [(1 + 2**-12, True), (2, False)])
def test_coarser_dots_than_declared_are_the_cause_where_enough(tmp_path, factor, is_enough):
    case = softmax_case(batch=1, heads=1, seqlen=20, head_dim=16, recover=False)
    kernel = backward_with(tmp_path, f"dk = dk * {factor}")
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
