"""A run compared block by block is told as one that is compared whole."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from gradprobe.inputs.draw import draw
from gradprobe.numerics import sieve
from gradprobe.numerics.budget import Recovery
from gradprobe.numerics.by_block import BlockComparison
from gradprobe.numerics.compare import attention_of, compare
from gradprobe.numerics.declared_precision import precision_of
from gradprobe.numerics.identities import agreement, allowed, identities
from gradprobe.numerics.locate import locate
from gradprobe.runtime.trace import Trace
from tests.emulated import Arithmetic, case_of, ran

GRADIENTS = ("O", "dQ", "dK", "dV")
ALL = (*GRADIENTS, "LSE", "P", "dP", "delta", "dS")
SIZES = {"batch": 2, "heads": 4, "kv_heads": 2, "seqlen": 70, "head_dim": 16, "causal": True}
NAN = float("nan")


def times(name, factor, *place):
    return lambda values: values[name][place].mul_(factor)


FAULTS = {
    "one key head": times("dK", 1.01, 1, 1),
    "one query head": times("dQ", 1.1, 0, 3),
    "some rows of two heads": times("dV", NAN, slice(None), 0, slice(7, 9)),
    "dS, and what comes of it": lambda values: [times(name, 1.5, 1)(values) for name in ("dS", "dQ", "dK")],
    "everywhere": times("dQ", 1.5),
}


def never():
    raise AssertionError("the whole case was compared")


def run_of(fault, names, dtype="float32"):
    case = case_of("softmax", **SIZES, dtype=dtype)
    values = draw(case)
    trace = ran(case, Arithmetic(tensor_core=dtype != "float32", delta_from_o=True), values=values, names=names)
    came = {name: value.clone() for name, value in trace.values.items()}
    FAULTS[fault](came)
    return case, values, Trace(came, trace.sources), precision_of(dtype, "ieee")


def told(finding):
    counts = (finding.total, finding.non_finite, finding.status, finding.first, finding.first_wrong)
    return (*counts, *(of.tolist() for of in (finding.wrong, finding.own, finding.wrong_rows)))


@pytest.mark.parametrize("by_sieve", [True, False])
@pytest.mark.parametrize(
    ("fault", "names"), [(fault, ALL if fault.startswith("dS") else GRADIENTS) for fault in FAULTS]
)
def test_findings_place_and_identities_are_those_of_the_whole(fault, names, by_sieve, monkeypatch):
    if not by_sieve:
        monkeypatch.setattr(sieve.Sieve, "sift", lambda *args, **options: None)
    case, values, trace, precision = run_of(fault, names)
    x = attention_of(case, values)
    whole = compare(case, x, trace, precision)
    found, invariants = BlockComparison(case, values, trace, precision).compared(never, lambda fraction: None)
    assert not whole.matches
    for name, finding in whole.findings.items():
        part = found.findings[name]
        assert told(part) == told(finding), name
        assert bool((part.ratio >= finding.ratio * (1 - 1e-9)).all())
        if not by_sieve:
            assert torch.equal(part.ratio, finding.ratio)
            assert part.rms_ratio == pytest.approx(finding.rms_ratio, rel=1e-9, nan_ok=True)
            assert part.max_abs_err == finding.max_abs_err
            assert torch.equal(part.signs, finding.signs)
    assert found.absent == whole.absent
    assert found.leaks == whole.leaks
    assert repr(locate(x, trace, found)) == repr(locate(x, trace, whole))
    held = {(one.key, one.of): one.holds for one in identities(case, x, trace, whole)}
    assert {(one.key, one.of): one.holds for one in invariants} == held


def test_what_is_inherited_in_one_block_is_not_promoted_for_a_fault_of_another(monkeypatch):
    case, values, trace, precision = run_of("one query head", GRADIENTS)
    compared = BlockComparison._compared

    def with_an_inherited_one(by, block):
        comparison, invariants = compared(by, block)
        finding = comparison.findings["dV"]
        wrong = replace(finding, wrong=finding.wrong + 1) if block.batch == 0 else finding
        return replace(comparison, findings={**comparison.findings, "dV": wrong}), invariants

    monkeypatch.setattr(BlockComparison, "_compared", with_an_inherited_one)
    together, _ = BlockComparison(case, values, trace, precision).compared(never, lambda fraction: None)
    assert [together.findings[name].status for name in ("dV", "dQ")] == ["inherited", "mismatch"]


def test_until_wrong_looks_no_further_and_the_coarser_arithmetic_is_asked_for():
    case, values, trace, precision = run_of("everywhere", GRADIENTS, "bfloat16")
    ticks = []
    found, _ = BlockComparison(case, values, trace, precision, coarse=True).compared(
        never, ticks.append, until_wrong=True
    )
    assert not found.matches
    assert ticks == [1 / 4]
    x = attention_of(case, values)
    coarse = compare(case, x, trace, precision.coarser)
    assert found.findings["dQ"].wrong[0, :2].tolist() == coarse.findings["dQ"].wrong[0, :2].tolist()


def test_what_was_recovered_is_widened_in_every_block():
    case, values, trace, precision = run_of("everywhere", ALL)
    zero_key = torch.zeros(2, 4, 70, dtype=torch.long)
    zero_key[1, 3, 40:] = -1
    recovery = Recovery(torch.float32, torch.float32, 1.0, zero_key)
    x = attention_of(case, values)
    whole = compare(case, x, trace, precision, recovery=recovery)
    found, _ = BlockComparison(case, values, trace, precision, recovery=recovery).compared(never, lambda fraction: None)
    for name, finding in whole.findings.items():
        assert told(found.findings[name]) == told(finding), name
    assert found.reading == pytest.approx(whole.reading)
    assert found.recovery is recovery


@pytest.mark.parametrize("share", [0.5, 0.995, 1.005, 1.5])
@pytest.mark.parametrize("head", [3, 0])
def test_a_second_run_is_held_to_what_the_whole_budget_allows(head, share):
    case, values, trace, precision = run_of("one query head", GRADIENTS)
    whole = compare(case, attention_of(case, values), trace, precision)
    found, _ = BlockComparison(case, values, trace, precision).compared(never, lambda fraction: None)
    moved = {name: value.double() for name, value in trace.values.items()}
    # Of a head that was wrong, and of one that passed the sieve: two runs are allowed twice what one is.
    one = allowed(whole, {name: value.dtype for name, value in trace.values.items()})["dQ"]
    moved["dQ"][0, head, 5, 3] += 2 * share * one[0, head, 5, 3]
    second = Trace(moved, trace.sources)
    held = [agreement("repeat", case, trace, second, of) for of in (whole, found)]
    assert [one.holds for one in held] == [share < 1] * 2
