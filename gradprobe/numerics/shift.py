"""By how much values move together when operands are rounded: a term of the budget beside independent errors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from ..model.intermediates import names
from ..reference import Attention, Tile, evaluate
from .declared_precision import Narrow, Precision, nearest, softcap_slope, truncated
from .totals import totals_of


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
        cut = partial(truncated, precision.operand)
        moved = [_moved(x, tile, values, narrow) for narrow in (cut, partial(cut, up=True))]
        for name in moved[0]:
            shift[name] = shift.get(name, 0.0) + 2 * moved[0][name].maximum(moved[1][name])
    return shift


def _moved(x: Attention, tile: Tile, values: Mapping[str, Tensor], narrow: Narrow) -> dict[str, Tensor]:
    coarse = replace(x, q=narrow(x.q), k=narrow(x.k), v=narrow(x.v), do=narrow(x.do))
    moved = evaluate(coarse, tile)
    known = ({*names()} - {"dP"} | {"dPE"}) & values.keys()
    return {name: (moved[name] - values[name]).abs().nan_to_num(0.0) for name in known}


def _shift_of_products(
    x: Attention, tile: Tile, values: Mapping[str, Tensor], precision: Precision
) -> dict[str, Tensor]:
    """Twice what values move by when PE, dS and O are rounded, in whichever way a kernel comes by delta.

    A kernel with dropout may round PE and dS before it divides what it sums of them by 1 - p: they round otherwise.
    """
    _, _, v, do = x.tensors(tile)
    narrow: Narrow = partial(truncated, precision.operand) if precision.operand else partial(nearest, precision)
    moved: dict[str, Tensor] = {}
    for divisor in {1.0, 1.0 - x.dropout}:
        rounded = partial(_divided, narrow, divisor)
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
    x: Attention, tile: Tile, values: Mapping[str, Tensor], by_delta: Tensor, narrow: Narrow
) -> dict[str, Tensor]:
    """What an error of delta, and then the rounding of dS, moves."""
    q, k, _, _ = x.tensors(tile)
    by_dt = -values["P"] * by_delta[..., None]
    by_ds = by_dt * softcap_slope(x, q, k)
    by_product = narrow(values["dS"] + by_ds) - values["dS"]
    moved = {"delta": by_delta, "dS": by_ds, "dQ": x.scale * by_product @ k, "dK": x.scale * by_product.mT @ q}
    return moved | totals_of(x, tile, values, {"dT": by_dt, "delta": by_delta})


def _divided(narrow: Narrow, factor: float, matrix: Tensor) -> Tensor:
    """A multiple of a matrix rounded, and divided again."""
    return narrow(matrix * factor) / factor
