"""A reference of the user's own: judged by the formulas before it judges, and what is shown is what it judged by."""

import pytest
import torch

from gradprobe.model.failures import ReferenceFailure
from gradprobe.reference import manual_attention_backward
from tests.emulated import case_of, softmax, target_of
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
        return results | {name: results[name] * factor for name in names}

    return reference


def without_its_mask(q, k, v, do, *, causal=False, scale=None):
    return in_float64(q, k, v, do, causal=causal and False, scale=scale)


def nan_in_dq(q, k, v, do, *, causal=False, scale=None):
    results = in_float64(q, k, v, do, causal=causal, scale=scale)
    results["dQ"][0, 1, 2, 3] = torch.nan
    return results


def refused(reference, **options):
    case, judge = case_of("softmax", **PLAIN | options), target_of(reference)
    with pytest.raises(ReferenceFailure, match="the verdict is about the reference: ") as raised:
        probe(case, target_of(right), reference=judge)
    assert raised.value.exit_code == 3
    return str(raised.value).partition("reference: ")[2], raised.value.way_out


@pytest.mark.parametrize(
    ("reference", "formula", "where"),
    [
        (off_by("dQ", "dK", factor=4.0), "dQ = scale * dS K", "head 0, row 1, col 0"),
        (without_its_mask, "LSE = log sum_j exp(S)", "head 0, row 0 it gives"),
        (nan_in_dq, "dQ = scale * dS K", "head 1, row 2, col 3 it gives nan, the"),
        (off_by("dV", factor=1.001), "dV = P^T dO", "head 0, row 0, col 0 it gives "),
    ],
)
def test_a_reference_that_departs_is_named_with_its_first_formula_and_both_numbers(
    reference, formula, where
):
    words = f"{reference.__name__} departs from {formula}: at batch 0, {where}"
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
