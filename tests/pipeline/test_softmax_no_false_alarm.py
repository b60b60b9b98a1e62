"""No right kernel is accused for any option of softmax: drawn cases in every emulated arithmetic."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import accumulate, product
from typing import Any

import pytest
import torch
from hypothesis import given

from gradprobe.inputs.draw import draw
from gradprobe.inputs.tensor_layouts import effective_values
from tests.emulated import Arithmetic, case_of, compared
from tests.numerics.test_budget import ARITHMETICS, PATTERNS, assert_right, dtype_of
from tests.sampling import DRAWS, sampled, tries


def drawn(draws: random.Random) -> tuple[str, Arithmetic, dict[str, Any]]:
    """An arithmetic and the options of a case."""
    pick, whole = draws.choice, draws.randint
    name = pick(list(ARITHMETICS))
    tanh = ["exact", "sigmoid", *(["hardware"] if not name.startswith("float32") else [])]
    of = {"late": pick([True, False]), "alibi_by_key": pick([True, False]), "tanh": pick(tanh)}
    how = replace(ARITHMETICS[name], **of)
    heads = pick([1, 2, 4])
    options: dict[str, Any] = {
        "heads": heads, "kv_heads": pick([1, heads]), "head_dim": whole(1, 70), "head_dim_v": whole(1, 70),
        "dtype": dtype_of(name), "pattern": pick(PATTERNS), "seed": whole(0, 2**31), "causal": pick([True, False]),
        "scale": pick([None, None, None, 1.0, 0.05, 0.0, -0.3]), "align": pick(["bottom-right", "top-left"]),
        "window": pick([None, None, (whole(-1, 60), whole(-1, 60))]), "softcap": pick([None, None, 1.0, 5.0, 50.0]),
        "alibi": pick([True, False]), "sinks": pick([True, False]), "dropout": pick([0.0, 0.0, 0.1, 0.3, 0.5, 0.9]),
        "mask": pick([None, None, "random", "dead-rows", "padding"]),
    } | _lengths(draws)  # fmt: skip
    if pick([True, False]):
        axes = "".join(axis for axis in "bhmn" if pick([True, False])) or "h"
        options |= {"bias": True, "bias_axes": axes}
    return name, how, options


def _lengths(draws: random.Random) -> dict[str, Any]:
    """Rectangular, padded, or packed with empty sequences."""
    kind = draws.choice(["plain", "plain", "padded", "packed"])
    batch, rows, keys = draws.randint(1, 3), draws.randint(1, 150), draws.randint(1, 150)
    if kind == "plain":
        return {"batch": batch, "seqlen_q": rows, "seqlen_k": keys}
    if kind == "padded":
        lengths = tuple(draws.randint(0, rows) for _ in range(batch))
        return {"batch": batch, "seqlen": rows, "seqlens": lengths}
    ends = [
        tuple(accumulate([0, *(draws.choice([0, draws.randint(1, 60)]) for _ in "123"), 9]))
        for _ in range(2)
    ]
    return {"cu_seqlens": ends[0], "cu_seqlens_k": draws.choice(ends)}


@tries(40)
@given(DRAWS)
def test_a_right_kernel_with_any_options_matches(draws):
    name, how, options = drawn(draws)
    findings = compared(case_of("softmax", **options), how).findings
    assert len(findings) == 9 + options.get("bias", False) + options["sinks"] + options["alibi"]
    wrong = {
        at: (finding.mismatched, finding.max_ratio)
        for at, finding in findings.items()
        if finding.mismatched
    }
    assert not wrong, f"{name}, {how}, {options} was accused of {wrong}"


REPEATING = {
    "sinks near LSE": {"sinks": True},
    "sinks, dropout": {"sinks": True, "dropout": 0.3},
    "one bias a head, sinks": {"bias": True, "bias_axes": "h", "sinks": True},
    "one bias a key, dropout": {"bias": True, "bias_axes": "n", "dropout": 0.1},
}
RECURRING = ("small", "offset")
ROUNDED = ("float32", "tf32-cut", "float16", "bfloat16-stored-in-float32")


@sampled(
    "options, late, pattern, name",
    product(REPEATING, [False, True], RECURRING, ROUNDED),
    push=[
        (each, at % 2 > 0, RECURRING[at // 2], name)
        for each in REPEATING
        for at, name in enumerate(ROUNDED)
    ],
)
def test_roundings_that_recur_in_300_rows_of_one_do_do_not_accuse(options, late, pattern, name):
    """P is nearly 1 / 258 everywhere, half of it the sink's; V is positive and dO the same for all rows."""
    sizes = {"batch": 1, "heads": 2, "seqlen_q": 300, "seqlen_k": 257, "pattern": pattern}
    case = case_of("softmax", **sizes, dtype=dtype_of(name), **REPEATING[options])
    values = effective_values(draw(case), (("do", "expanded"),))
    values["v"] = values["v"].abs()
    if "sinks" in values:
        values["sinks"] = values["sinks"] + 5.5
    assert_right(compared(case, replace(ARITHMETICS[name], late=late), values=values))


@pytest.mark.parametrize("by_key", [False, True], ids=["by distance", "by key"])
def test_scores_that_steep_slopes_make_of_thousands_accuse_nothing(by_key):
    sizes = {"heads": 2, "seqlen_q": 150, "seqlen_k": 150, "head_dim": 4}
    case = case_of("softmax", batch=1, causal=True, alibi=True, pattern="small", **sizes)
    values = draw(case) | {"alibi": torch.tensor([37.7, 1.37])}
    assert_right(compared(case, Arithmetic(alibi_by_key=by_key), values=values))


def test_one_key_1500_times_over_beside_a_sink_of_its_weight_accuses_nothing():
    """All scores of a row are one number and err alike, which a sum of them cancels and a sink does not."""
    sizes = {"batch": 1, "heads": 1, "seqlen_q": 24, "seqlen_k": 1500, "head_dim": 64}
    case = case_of("softmax", **sizes, sinks=True)
    values = draw(case)
    one_key = values["k"][:, :, :1].abs().expand_as(values["k"]).contiguous()
    values |= {"q": values["q"].abs() * 2, "k": one_key}
    score = (values["q"].mean(2) * values["k"][:, :, 0]).sum() * 64**-0.5
    assert_right(
        compared(case, values=values | {"v": values["v"].abs(), "sinks": score[None] + 7.3})
    )


@sampled("seed", range(20), push=5)
def test_a_dsink_of_one_row_which_errs_as_its_delta_and_its_lse_do_is_not_accused(seed):
    sizes = {"batch": 1, "heads": 4, "seqlen_q": 1, "seqlen_k": 500, "head_dim": 64}
    case = case_of("softmax", **sizes, pattern="large", sinks=True, seed=seed)
    values = draw(case)
    assert_right(compared(case, values=values | {"sinks": values["sinks"] + 12}))


def test_probabilities_among_float16s_subnormals_that_dropout_makes_ten_times_larger_accuse_nothing():
    sizes = {"batch": 1, "heads": 1, "seqlen_q": 60, "seqlen_k": 400, "head_dim": 16}
    case = case_of("softmax", **sizes, dropout=0.9, sinks=True, dtype="float16")
    values = draw(case) | {"sinks": torch.tensor([18.0])}
    assert_right(compared(case, Arithmetic(late=True, stored=torch.float32), values=values))


@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_a_bias_of_minus_infinity_accuses_nothing_and_makes_a_dead_row(name):
    case = case_of(
        "softmax", seqlen_q=40, seqlen_k=50, bias=True, bias_axes="mn", dtype=dtype_of(name)
    )
    values = draw(case)
    values["bias"][..., 3] = values["bias"][..., 7, :] = -torch.inf
    comparison = compared(case, ARITHMETICS[name], values=values)
    assert_right(comparison)


@pytest.mark.parametrize("lse", [-torch.inf, torch.inf, 0.0])
def test_any_lse_but_nan_of_a_dead_row_passes_beside_a_sink(lse):
    case = case_of("softmax", mask="dead-rows", sinks=True)
    values = draw(case)
    dead = ~values["mask"].any(-1)

    def other(name, tensor):
        return tensor.masked_fill(dead, lse) if name == "LSE" else tensor

    comparison = compared(
        case, values=values, fault=other, names=("LSE", "P", "O", "delta", "dQ", "dK", "dV")
    )
    assert comparison.matches
    assert not compared(
        case, values=values, fault=lambda n, t: t * torch.nan if n == "LSE" else t
    ).matches
