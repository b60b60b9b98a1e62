"""A q or k that is scaled and then rounded: proven by the numbers that come of it, told, and no excuse for more."""

import math
from dataclasses import replace

import pytest
import torch

from gradprobe.inputs.draw import draw
from gradprobe.numerics.compare import attention_of, compare
from gradprobe.numerics.declared_precision import precision_of
from gradprobe.numerics.evidence import MeasuredRun
from gradprobe.numerics.locate import close_up
from gradprobe.runtime.run import read_trace
from tests.emulated import case_of, softmax, target_of
from tests.probe import probe


def as_in_the_tutorial(
    q, k, v, do, *, scale=None, causal=False, rounds="k", forward=False, log2e=True, alone=False, spoil=None,
):  # fmt: skip
    """Softmax attention whose backward (with `forward`, all of it) takes its scores of a rounded operand.

    With `alone`, the factor is rounded before it is multiplied in.
    """
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    factor = scale * (math.log2(math.e) if log2e else 1.0)
    used = torch.tensor(factor).to(q.dtype).item() if alone else factor
    tensors = {"q": q, "k": k}
    tensors[rounds] = (tensors[rounds].float() * used).to(q.dtype).float() / factor
    wide = {name: tensor.float() for name, tensor in tensors.items()}
    exact = softmax(q, k, v, do, scale=scale, causal=causal)
    rounded = softmax(wide["q"], wide["k"], v.float(), do.float(), scale=scale, causal=causal)
    lse = rounded["LSE"] if forward else exact["LSE"]
    p = rounded["P"] * (rounded["LSE"] - lse).exp()[..., None]
    o = (p.to(q.dtype).float() @ v.float()).to(q.dtype) if forward else exact["O"].to(q.dtype)
    dp = do.float() @ v.float().mT
    ds = p * (dp - (do.float() * o.float()).sum(-1, keepdim=True))
    ds = spoil(ds) if spoil else ds
    ds_16, p_16 = ds.to(q.dtype).float(), p.to(q.dtype).float()
    results = {
        "dQ": scale * ds_16 @ wide["k"],
        "dK": scale * ds_16.mT @ wide["q"],
        "dV": p_16.mT @ do.float(),
    }
    return {"O": o, "P": p, "dS": ds} | {
        name: value.to(q.dtype) for name, value in results.items()
    }


def by_two_kernels(q, k, v, do, *, rounds="", **how):
    """q is rounded where dQ is computed, k where dK and dV are."""
    of_queries, of_keys = (
        as_in_the_tutorial(q, k, v, do, rounds=name, **how) for name in ("q", "k")
    )
    return of_keys | {name: of_queries[name] for name in ("dS", "dQ")}


CASE = {
    "batch": 1, "heads": 2, "seqlen": 96, "head_dim": 16, "causal": True, "pattern": "large", "scale": 0.9,
}  # fmt: skip
ONE_RUN = {"layouts": (("q", "contiguous"),)}


def probed(options=None, attention=as_in_the_tutorial, **how):
    def target(q, k, v, do, *, scale=None, causal=False):
        return attention(q, k, v, do, scale=scale, causal=causal, **how)

    case = case_of("softmax", **CASE, **ONE_RUN, **{"dtype": "float16", **(options or {})})
    return probe(case, target_of(target), why=False)


GROWTH = {
    dtype: f"; its errors grow with the scores: of scores of {of} and more, P is off by a tenth"
    for dtype, of in {"float16": 205, "bfloat16": 26}.items()
}


def told(report):
    assert report.verdict == "match"
    return [one.sentence for one in report.measured[0][1].coarser]


FACTOR = "scale * log2(e)"
# Triton rounds the factor too where a kernel multiplies a 16-bit block by a number.
OPERANDS = [
    ("bfloat16", as_in_the_tutorial, {"rounds": "q"}, f"{FACTOR} * q to bfloat16 before the scores of its backward"),
    ("float16", as_in_the_tutorial, {"rounds": "k", "log2e": False, "forward": True},
     "scale * k to float16 before the scores"),
    ("float16", as_in_the_tutorial, {"alone": True},
     f"{FACTOR}, and k times that, to float16 before the scores of its backward"),
    ("bfloat16", by_two_kernels, {"alone": True},
     f"{FACTOR}, and q times that, to bfloat16 before the scores of dQ, and {FACTOR}, and k times that, to bfloat16 "
     "before those of dK and dV"),
]  # fmt: skip


@pytest.mark.parametrize(("dtype", "attention", "how", "words"), OPERANDS)
def test_a_rounded_operand_of_the_scores_is_told_and_matches_and_fails_when_strict(
    dtype, attention, how, words
):
    said = f"coarser than its contract: rounds {words}{GROWTH[dtype]}"
    assert told(probed({"dtype": dtype}, attention, **how)) == [said]
    assert probed({"dtype": dtype, "strict": True}, attention, **how).verdict == "mismatch"


def test_a_close_up_shows_nothing_wrong_where_the_check_found_a_rounded_operand():
    report = probed()
    _, measured = report.measured[0]
    assert measured.coarser
    for name in ("P", "dS", "dQ", "dK"):
        view = close_up(report.case, "contiguous", measured, name, None)
        assert view.mismatched == 0
        assert all(cell is None or cell <= 1 for line in view.map for cell in line)


def test_a_close_up_of_another_head_shows_its_first_wrong_row_and_allows_what_the_comparison_did():
    """More is allowed where dQ's sum proved to be kept in 16 bits."""
    case = case_of("softmax", batch=1, heads=2, seqlen=40, head_dim=16)
    values = draw(case)
    dq = softmax(**values)["dQ"]
    dq[:, 0, 2:] *= 1.5
    dq[:, 1, 5:] *= 1.5
    trace = read_trace({"dQ": dq}, case, "emulated")
    x = attention_of(case, values)
    strict = compare(case, x, trace, precision_of("float32", "ieee"))
    wide = replace(strict, bounds={**strict.bounds, "dQ": strict.expected["dQ"].abs() + 1.0})
    first, none = (
        close_up(case, "contiguous", MeasuredRun(lambda: x, trace, found, None), "dQ", (0, 1))
        for found in (strict, wide)
    )
    assert (first.head, first.element.row) == (1, 5)
    assert none.mismatched == 0 < first.mismatched


def one_element(ds):
    ds = ds.clone()
    ds[0, 1, 50, 7] += 0.3
    return ds


@pytest.mark.parametrize(
    ("spoil", "attention"), [(lambda ds: ds * 1.02, as_in_the_tutorial), (one_element, by_two_kernels)]
)  # fmt: skip
def test_a_fault_beside_a_rounded_operand_stays_a_mismatch(spoil, attention):
    report = probed(None, attention, spoil=spoil)
    assert report.verdict == "mismatch"
    assert report.measured[0][1].coarser == ()


def test_an_exact_kernel_is_told_nothing():
    report = probe(case_of("softmax", **CASE, **ONE_RUN, dtype="float16"), target_of(softmax))
    assert report.verdict == "match"
    assert report.measured[0][1].coarser == ()
