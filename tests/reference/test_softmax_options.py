"""Alignment, alibi, masks, sinks, dropout and packed sequences, alone and together, against float64 autograd."""

import random

import pytest
import torch
from torch import Tensor

from gradprobe.reference import manual_attention_backward
from tests.reference import independent
from tests.reference.independent import Inputs, assert_same, by_autograd, draw, softmax_inputs

ALIGNMENTS = ("bottom-right", "top-left")
# Dropout of at most a half doubles P on its way to O and dP once more, so errors grow fourfold; alibi's slopes below 1
# times distances below 13 put scores at 24 in place of 11, whose roundings exp multiplies by twice as much.
WIDER = 8 * independent.ROUNDING


def check(inputs: Inputs, **options) -> dict[str, Tensor]:
    actual = manual_attention_backward(**inputs, **options)
    assert_same(actual, by_autograd(**inputs, **options), WIDER)
    hidden = actual["P"] == 0
    assert not any(actual[name][hidden].any() for name in ("dP", "dS"))
    return actual


def bits(*shape: int, seed: int, share: float = 0.7) -> Tensor:
    return draw(*shape, seed=seed) < 2 * share - 1


def features(heads: int) -> dict[str, Inputs]:
    return {
        "alibi": {"alibi": draw(heads, seed=20).abs()},
        "mask": {},
        "sinks": {"sinks": 2 * draw(heads, seed=22)},
        "dropout": {},
        "bias": {},
        "softcap": {"softcap": 0.7, "scale": 2.0},
    }


ENDS = {
    "3 and 4": ([0, 3, 7], [0, 3, 7]),
    "1, 0 and 6": ([0, 1, 1, 7], [0, 1, 1, 7]),
    "3 rows without keys": ([0, 3, 7], [0, 0, 5]),
    "keys without rows": ([0, 3, 3, 7], [0, 2, 6, 9]),
    "empty ones at both ends": ([0, 0, 5, 7, 7], [0, 0, 2, 9, 9]),
    "one": ([0, 7], [0, 9]),
}  # fmt: skip


def packed(ends: str, **shapes: int) -> tuple[Inputs, Inputs]:
    ends_q, ends_k = ENDS[ends]
    inputs = {
        name: t[:1] for name, t in softmax_inputs(ends_q[-1], ends_k[-1], **shapes).items()
    }
    cu_seqlens = {"cu_seqlens_q": ends_q, "cu_seqlens_k": ends_k}
    return inputs, {
        name: torch.tensor(one, dtype=torch.int32) for name, one in cu_seqlens.items()
    }


def drawn(seed: int) -> tuple[Inputs, Inputs]:
    draws = random.Random(seed)
    m, n, heads = draws.randint(1, 12), draws.randint(1, 12), draws.choice((1, 2, 4))
    ends = draws.choice((None, None, *ENDS))
    if ends is not None:
        inputs, options = packed(ends, heads=heads, kv_heads=draws.choice((1, heads)), dv=2)
        m, n = inputs["q"].shape[2], inputs["k"].shape[2]
    else:
        n = m if draws.random() < 0.3 else n
        kv_heads = draws.choice((1, max(1, heads // 2), heads))
        inputs, options = softmax_inputs(m, n, heads=heads, kv_heads=kv_heads, dv=2), {}
        if m == n:
            options = {"seqlens": torch.tensor([draws.randint(0, m), m])}
    chosen = [name for name in features(heads) if draws.random() < 0.6]
    for name in chosen:
        options |= features(heads)[name]
    full = (inputs["q"].shape[0], heads, m, n)
    if "mask" in chosen:
        options["mask"] = bits(*(draws.choice((1, size)) for size in full), seed=seed)
    if "bias" in chosen:
        options["bias"] = draw(*(draws.choice((1, size)) for size in full), seed=seed)
    if "dropout" in chosen:
        options |= {"keep": bits(*full, seed=seed + 1), "dropout": draws.choice((0.1, 0.5))}
    options |= {"align": draws.choice(ALIGNMENTS), "causal": draws.random() < 0.5}
    if draws.random() < 0.5:
        options["window"] = (draws.randint(-1, 5), draws.randint(-1, 5))
    return inputs, options


@pytest.mark.parametrize("seed", range(40))
def test_any_features_together(seed):
    inputs, options = drawn(seed)
    actual = check(inputs, **options)
    for row_tile, head_tile in ((1, 1), (3, 2)):
        tiles = {"row_tile": row_tile, "head_tile": head_tile}
        assert_same(manual_attention_backward(**inputs, **options, **tiles), actual, WIDER)


@pytest.mark.parametrize("scale", [None, -0.5, 0.0])
def test_a_given_scale_replaces_1_over_root_of_the_head_dim_of_q_and_0_is_a_scale(scale):
    check(softmax_inputs(5, 6, d=4, dv=2), scale=scale)


def test_scores_of_2000_do_not_overflow_and_tied_keys_share_the_row():
    ones = torch.ones(1, 1, 2, 1, dtype=torch.float64)
    actual = manual_attention_backward(ones, ones, ones, ones, scale=2000.0)
    # LSE = 2000 + log 2 is rounded to a number between 1024 and 2048, which are 2**-42 apart;
    # P = exp(S - LSE) = 0.5 then errs by half of as much, and by one rounding of its own, 2**-54.
    assert ((actual["LSE"] - 2000.6931471805599).abs() <= 2.0**-42).all()
    assert ((actual["P"] - 0.5).abs() <= 2.0**-43 + 2.0**-54).all()
