"""`evaluate` with values given: each intermediate from its own parents, whether these are right or wrong."""

import pytest
import torch
from torch import Tensor

from gradprobe.reference import Attention, Tile, evaluate
from tests.reference.independent import OFF, draw, lazy_inputs, softmax_inputs

TILE = Tile(1, slice(1, 3), slice(2, 6))


def softmax(**options) -> Attention:
    inputs = softmax_inputs(7, 7, heads=4, kv_heads=2)
    bias = draw(4, 7, 1, seed=9)
    return Attention("softmax", **inputs, scale=0.5, causal=True, bias=bias, **options)


def lazy() -> Attention:
    lengths = torch.tensor([7, 5])
    return Attention(**lazy_inputs(7, window=3), scale=0.5, causal=True, seqlens=lengths)


def full() -> Attention:
    mask, keep = (draw(2, 4, 7, 7, seed=seed) > -0.6 for seed in (5, 6))
    per_head = {"sinks": draw(4, seed=7), "alibi": draw(4, seed=8).abs()}
    return softmax(mask=mask, keep=keep, dropout=0.25, **per_head)


PROBLEMS = {
    "softmax": softmax, "softcap": lambda: softmax(softcap=0.5), "full": full, "lazy": lazy,
}  # fmt: skip
AUXILIARY = {"S", "Z", "PE", "dPE", "valid"}


def unlike(value: Tensor) -> Tensor:
    """A wrong value that is nowhere near, and that is not 0 where the right one is.

    A wrong P is at most 2.25: a row of 7 keys then has |delta| <= 48, and adds at most 7 * 2.25 * 51 = 804 to
    dBias, still inside the 1040 that ROUNDING allows for.
    """
    return 1.5 * value.nan_to_num(neginf=0.0) + 0.25 * draw(*value.shape, seed=77) + 0.5


def changed(x: Attention, name: str) -> set[str]:
    """Which intermediates move, beyond rounding, when a wrong value is given for one; auxiliaries aside."""
    right = evaluate(x, TILE)
    wrong = evaluate(x, TILE, {name: unlike(right[name])})
    assert wrong.keys() == right.keys()
    names = right.keys() - AUXILIARY
    return {
        n for n in names if not bool((torch.nan_to_num(wrong[n] - right[n]).abs() <= OFF).all())
    }


SOFTMAX_MOVES = {
    "LSE": {"P", "O", "delta", "dS", "dQ", "dK", "dV", "dBias"},
    "P": {"O", "delta", "dS", "dQ", "dK", "dV", "dBias"},
    "O": {"delta", "dS", "dQ", "dK", "dBias"},
    "dP": {"dS", "dQ", "dK", "dBias"},
    "delta": {"dS", "dQ", "dK", "dBias"},
    "dS": {"dQ", "dK", "dBias"},
    "dQ": set(), "dK": set(), "dV": set(), "dBias": set(),
}  # fmt: skip


OF_DSINK = ("LSE", "P", "O", "delta")


@pytest.mark.parametrize("name", SOFTMAX_MOVES)
def test_a_wrong_value_moves_dsink_by_lse_or_delta_and_dalibi_as_it_moves_dbias(name):
    moved = SOFTMAX_MOVES[name]
    of_sink = {"dSink"} if name in OF_DSINK else set()
    of_alibi = {"dAlibi"} if "dBias" in moved else set()
    assert changed(full(), name) == moved | of_sink | of_alibi


LAZY_MOVES = {
    "LSE": {"P", "O", "dP", "delta", "dS", "dQ", "dK", "dV", "dBias", "dTau"},
    "P": {"O", "dP", "delta", "dS", "dQ", "dK", "dV", "dBias", "dTau"},
    "O": set(),
    "dP": {"delta", "dS", "dQ", "dK", "dBias", "dTau"},
    "delta": {"dS", "dQ", "dK", "dBias"},
    "dS": {"dQ", "dK", "dBias"},
    "dQ": set(), "dK": set(), "dV": set(), "dBias": set(), "dTau": set(),
}  # fmt: skip


@pytest.mark.parametrize("name", LAZY_MOVES)
def test_a_wrong_value_moves_what_depends_on_it_in_lazy_and_nothing_else(name):
    assert changed(lazy(), name) == LAZY_MOVES[name]


@pytest.mark.parametrize("problem", PROBLEMS)
def test_what_is_not_wanted_is_left_out_and_what_is_wanted_is_the_same(problem):
    x = PROBLEMS[problem]()
    everything, some = evaluate(x, TILE), evaluate(x, TILE, wanted=("delta", "dV"))
    assert not {"dQ", "dK", "dTau", "dSink"} & some.keys()
    assert {"delta", "dV"} <= some.keys()
    for name, value in some.items():
        assert torch.equal(value, everything[name]), name
