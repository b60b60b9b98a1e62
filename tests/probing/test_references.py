"""A reference of the user's own: judged by the formulas before it judges, and what is shown is what it judged by."""

from __future__ import annotations

import pytest
import torch

from gradprobe.inputs.draw import draw
from gradprobe.model.failures import ReferenceFailure
from gradprobe.numerics.compare import attention_of, compare
from gradprobe.numerics.declared_precision import precision_of
from gradprobe.numerics.evidence import MeasuredRun
from gradprobe.numerics.locate import close_up, locate
from gradprobe.reference import manual_attention_backward
from gradprobe.runtime.run import Trace
from tests.emulated import case_of, lazy, softmax, target_of
from tests.probe import probe

SMALL = {"batch": 1, "heads": 2, "seqlen": 40, "head_dim": 16, "causal": True, "recover": False}
PLAIN = {**SMALL, "layouts": (("q", "contiguous"),)}


def right(q, k, v, do, *, causal=False, scale=None):
    return softmax(q, k, v, do, causal=causal, scale=scale)


def in_float64(q, k, v, do, *, causal=False, scale=None):
    return manual_attention_backward(q, k, v, do, causal=causal, scale=scale)


def in_float32(q, k, v, do, *, causal=False, scale=None):
    return softmax(q.float(), k.float(), v.float(), do.float(), causal=causal, scale=scale)


def off_by(*names, factor):
    def reference(q, k, v, do, *, causal=False, scale=None):
        results = in_float64(q, k, v, do, causal=causal, scale=scale)
        return {
            name: value * (factor if name in names else 1.0) for name, value in results.items()
        }

    return reference


def without_its_mask(q, k, v, do, *, causal=False, scale=None):
    return in_float64(q, k, v, do, causal=causal and False, scale=scale)


def nan_in_dq(q, k, v, do, *, causal=False, scale=None):
    results = in_float64(q, k, v, do, causal=causal, scale=scale)
    results["dQ"][0, 1, 2, 3] = torch.nan
    return results


def refused(reference, **options):
    with pytest.raises(ReferenceFailure, match="the verdict is about the reference: ") as raised:
        probe(
            case_of("softmax", **PLAIN | options),
            target_of(right),
            reference=target_of(reference),
        )
    assert raised.value.exit_code == 3
    return str(raised.value).partition("reference: ")[2], raised.value.way_out


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        (
            off_by("dQ", "dK", factor=4.0),
            "reference departs from dQ = scale * dS K: at batch 0, head 0, row 1, col 0",
        ),
        (
            off_by("delta", factor=2.0),
            "reference departs from delta = rowsum(dO * O): at batch 0, head 0, row 0 it",
        ),
        (
            without_its_mask,
            "without_its_mask departs from LSE = log sum_j exp(S): at batch 0, head 0, row 0 it gives",
        ),
        (
            nan_in_dq,
            "nan_in_dq departs from dQ = scale * dS K: at batch 0, head 1, row 2, col 3 it gives nan, the",
        ),
        (
            off_by("dV", factor=1.001),
            "reference departs from dV = P^T dO: at batch 0, head 0, row 0, col 0 it gives ",
        ),
    ],
)
def test_a_reference_that_departs_is_named_with_its_first_formula_and_both_numbers(
    reference, words
):
    assert refused(reference)[0].startswith(words)


def test_a_float32_reference_may_judge_a_kernel_of_16_bits_and_none_of_float32():
    words, way_out = refused(in_float32)
    assert "in_float32 errs by 0." in words
    assert words.endswith(
        "of what float32 may err by, and beside a kernel in float32 it may by 6e-05"
    )
    assert way_out.endswith("compute it in float64")
    for dtype in ("bfloat16", "float16"):
        case = case_of("softmax", **SMALL, dtype=dtype)
        assert probe(case, target_of(right), reference=target_of(in_float32)).verdict == "match"


def test_a_float64_dtau_off_by_a_rounding_of_float32_may_not_judge_a_float32_kernel_though_no_identity_sees_it():
    def reference(q, k, v, do, *, tau, scale=None, bias=None):
        found = manual_attention_backward(
            q, k, v, do, family="lazy", tau=tau, scale=scale, bias=bias
        )
        return found | {"dTau": found["dTau"] * (1 + 2.0**-24)}

    def target(q, k, v, do, *, tau, scale=None, bias=None):
        return lazy(q, k, v, do, tau=tau, scale=scale, bias=bias)

    case = case_of("lazy", batch=1, heads=2, seqlen=40, head_dim=16, recover=False)
    with pytest.raises(ReferenceFailure, match="dTau of .*reference errs by 0.0"):
        probe(case, target_of(target, "lazy"), reference=target_of(reference, "lazy"))


@pytest.mark.parametrize("pattern", ["normal", "large", "negative", "lowrank"])
def test_a_float64_reference_by_autograd_may_judge(pattern):
    def by_autograd(q, k, v, *, causal=False, scale=None):
        return torch.nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=causal, scale=scale
        )

    case = case_of("softmax", **SMALL, pattern=pattern)
    assert probe(case, target_of(right), reference=target_of(by_autograd)).verdict == "match"


def test_a_reference_that_takes_o_and_lse_is_given_them_in_float64():
    def from_saved(q, k, v, do, o, lse, *, causal=False, scale=None):
        s = (scale * q @ k.mT).masked_fill(
            torch.ones(40, 40, dtype=torch.bool).triu(1), -torch.inf
        )
        p = (s - lse[..., None]).exp()
        ds = p * (do @ v.mT - (do * o).sum(-1, keepdim=True))
        return {"P": p, "dQ": scale * ds @ k, "dK": scale * ds.mT @ q, "dV": p.mT @ do}

    for dtype in ("float32", "float16"):
        case = case_of("softmax", **SMALL, dtype=dtype)
        assert probe(case, target_of(right), reference=target_of(from_saved)).verdict == "match"


@pytest.mark.parametrize("name", ["P", "dS", "dQ", "dV"])
def test_the_numbers_around_a_mismatch_are_those_that_it_was_judged_by(name):
    case = case_of("softmax", **SMALL)
    x = attention_of(case, draw(case))
    every = manual_attention_backward(x.q, x.k, x.v, x.do, causal=True, scale=case.scale)
    trace, other = (
        Trace(every, dict.fromkeys(every, "exported")),
        Trace({name: every[name] * 1.5}, {name: "exported"}),
    )
    comparison = compare(case, x, trace, precision_of("float32", "ieee"), reference=other)
    first = locate(x, trace, comparison)
    assert first.intermediate == name
    assert first.actual == pytest.approx(first.expected / 1.5)
    around = [numbers[first.window.cols.index(first.col)] for numbers in
              (first.window.actual[first.window.rows.index(first.row)],
               first.window.expected[first.window.rows.index(first.row)])]  # fmt: skip
    assert around == [first.actual, first.expected]
    close = close_up(
        case, "contiguous", MeasuredRun(lambda: x, trace, comparison, first, ()), name, None
    )
    assert (close.element.actual, close.element.expected) == tuple(around)
    assert all(row.expected == pytest.approx(1.5 * row.actual) for row in close.rows)
