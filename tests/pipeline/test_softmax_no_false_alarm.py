"""No right kernel is accused for any option of softmax: drawn cases in every emulated arithmetic."""

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
    wrong = {at: found.max_ratio for at, found in findings.items() if found.mismatched}
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


def one_key(values):
    """All scores of a row are one number and err alike, which a sum of them cancels and a sink does not."""
    k = values["k"][:, :, :1].abs().expand_as(values["k"]).contiguous()
    q, v = values["q"].abs() * 2, values["v"].abs()
    score = (q.mean(2) * k[:, :, 0]).sum() * 64**-0.5
    return {"q": q, "k": k, "v": v, "sinks": score[None] + 7.3}


def of_minus_infinity(values):
    bias = values["bias"].clone()
    bias[..., 3] = bias[..., 7, :] = -torch.inf
    return {"bias": bias}


STEEP = {
    "heads": 2, "seqlen_q": 150, "seqlen_k": 150, "head_dim": 4, "causal": True, "alibi": True, "pattern": "small",
}  # fmt: skip
SINKS = {"seqlen_q": 1, "seqlen_k": 500, "head_dim": 64, "sinks": True, "pattern": "large"}
SUBNORMAL = {"seqlen_q": 60, "seqlen_k": 400, "dropout": 0.9, "sinks": True, "dtype": "float16"}
HARD = {
    "scores of thousands by steep slopes": (STEEP, lambda values: {"alibi": torch.tensor([37.7, 1.37])}),
    "one key 1500 times beside a sink of its weight":
        ({"seqlen_q": 24, "seqlen_k": 1500, "head_dim": 64, "sinks": True}, one_key),
    "a dSink of one row": (SINKS, lambda values: {"sinks": values["sinks"] + 12}),
    "float16's subnormals that dropout makes larger":
        (SUBNORMAL, lambda values: {"sinks": torch.tensor([18.0])}),
    "a bias of minus infinity": ({"seqlen_q": 40, "seqlen_k": 50, "bias": True, "bias_axes": "mn"}, of_minus_infinity),
}  # fmt: skip


@pytest.mark.parametrize("name", HARD)
@sampled("seed", range(20), push=2)
def test_hard_values_accuse_nothing(name, seed):
    options, change = HARD[name]
    case = case_of("softmax", **{"batch": 1, "heads": 1, "head_dim": 16, "seed": seed} | options)
    values, is_half = draw(case), options.get("dtype") == "float16"
    how = Arithmetic(late=is_half, stored=torch.float32 if is_half else None)
    assert_right(compared(case, how, values=values | change(values)))


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
