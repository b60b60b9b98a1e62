"""Correlated roundings: how far values move when everything that a contract may round is rounded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from ..reference import Attention, Tile, evaluate
from ..reference.lazy import sum_by_distance
from ..reference.softmax import sink_weight
from .precision import Precision

if TYPE_CHECKING:
    from torch import Tensor


def rounding_shift(
    x: Attention, tile: Tile, values: Mapping[str, Tensor], precision: Precision
) -> dict[str, Tensor] | None:
    """By how much every value moves when operands are rounded as the contract says; None for IEEE float32.

    Roundings are not independent where data repeats: TF32 truncates an element of q, k, v and dO in the same way
    wherever it is used; and rows of P or dS that differ by less than a unit in the last place round to the same
    numbers, which loses all that tells them apart. An evaluation with rounded operands shows how far that goes; twice
    as much is allowed, on top of what is independent.
    """
    if not precision.matrix:
        return None
    shift = _shift_of_products(x, tile, values, precision)
    if precision.operand:
        moved = [_moved(x, tile, values, narrow) for narrow in (_truncated, partial(_cut, added=0x1000))]
        for name in moved[0]:
            shift[name] = shift.get(name, 0.0) + 2 * moved[0][name].maximum(moved[1][name])
    return shift


def _moved(
    x: Attention, tile: Tile, values: Mapping[str, Tensor], narrow: Callable[[Tensor], Tensor]
) -> dict[str, Tensor]:
    coarse = replace(x, q=narrow(x.q), k=narrow(x.k), v=narrow(x.v), do=narrow(x.do))
    moved = evaluate(coarse, tile)
    names = {"LSE", "P", "O", "dPE", "delta", "dS", "dQ", "dK", "dV", "dBias", "dTau", "dSink"} & values.keys()
    return {name: (moved[name] - values[name]).abs().nan_to_num(0.0) for name in names}


def _shift_of_products(
    x: Attention, tile: Tile, values: Mapping[str, Tensor], precision: Precision
) -> dict[str, Tensor]:
    """Twice what values move by when PE, dS and O are rounded, in whichever way a kernel comes by delta.

    A kernel with dropout may round PE and dS before it divides what it sums of them by 1 - p: they round otherwise.
    """
    import torch

    _, _, v, do = x.tensors(tile)
    narrow = _truncated if precision.operand else _Nearest(precision)
    moved: dict[str, Tensor] = {}
    for divisor in {1.0, 1.0 - x.dropout}:
        rounded = _Divided(narrow, divisor)
        by_pe = rounded(values["PE"]) - values["PE"]
        by_o = by_pe @ v
        stored = by_o if precision.operand else narrow(values["O"] + by_o) - values["O"]
        ways = [{"O": by_o, "dV": by_pe.mT @ do}]
        # delta from P and dP, from O as it is computed, and from O as it is stored: dS rounds differently in each.
        for error_of_o in (torch.zeros_like(by_o), by_o, stored):
            ways.append(_moved_by_delta(x, tile, values, (do * error_of_o).sum(-1), rounded))
        for way in ways:
            moved |= {name: value.abs().maximum(moved.get(name, value.abs())) for name, value in way.items()}
    return {name: 2 * value for name, value in moved.items()}


def _moved_by_delta(
    x: Attention, tile: Tile, values: Mapping[str, Tensor], by_delta: Tensor, narrow: Callable[[Tensor], Tensor]
) -> dict[str, Tensor]:
    """What an error of delta, and then the rounding of dS, moves."""
    q, k, _, _ = x.tensors(tile)
    by_dt = -values["P"] * by_delta[..., None]
    by_ds = by_dt * softcap_slope(x, q, k)
    by_product = narrow(values["dS"] + by_ds) - values["dS"]
    moved = {"delta": by_delta, "dS": by_ds, "dQ": x.scale * by_product @ k, "dK": x.scale * by_product.mT @ q}
    moved |= {"dBias": like_bias(x, tile, by_dt)} if "dBias" in values else {}
    if "dSink" in values:
        moved |= {"dSink": (sink_weight(x, tile, values["LSE"]) * by_delta).sum(-1)}
    return moved


def like_bias(x: Attention, tile: Tile, matrix: Tensor) -> Tensor:
    """A matrix [h, m, N] summed as dBias sums dS, in the shape of the tile's part of the bias."""
    assert x.bias is not None
    if x.family == "lazy":
        i, j = x.positions(tile)
        return sum_by_distance(matrix, i - j, x.bias.shape[1])
    return matrix.sum_to_size(x.bias_part(x.bias, tile).shape)


def softcap_slope(x: Attention, q: Tensor, k: Tensor) -> Tensor | float:
    """The softcap's derivative."""
    return 1.0 if x.softcap is None else 1 - (x.scale * q @ k.mT / x.softcap).tanh() ** 2


@dataclass(frozen=True)
class _Nearest:
    """Rounds to the nearest numbers of a contract's 16-bit dtype, in float64."""

    precision: Precision

    def __call__(self, matrix: Tensor) -> Tensor:
        import torch

        _, exponent = torch.frexp(matrix)
        unit = torch.full_like(matrix, self.precision.matrix)
        spacing = torch.ldexp(unit, exponent).clamp(min=2 * self.precision.floor)
        return (matrix / spacing).round() * spacing


@dataclass(frozen=True)
class _Divided:
    """Rounds a multiple of a matrix, and divides it again."""

    narrow: Callable[[Tensor], Tensor]
    factor: float

    def __call__(self, matrix: Tensor) -> Tensor:
        return self.narrow(matrix * self.factor) / self.factor


def _truncated(tensor: Tensor) -> Tensor:
    """float64 holding float32 values -> the same with the 13 last bits of float32's significand cut off."""
    return _cut(tensor, 0)


def _cut(tensor: Tensor, added: int) -> Tensor:
    """The same after an addition to its bits: of 0x1000 to round to nearest, as kernels that convert first do."""
    import torch

    return ((tensor.float().view(torch.int32) + added) & ~0x1FFF).view(torch.float32).double()
