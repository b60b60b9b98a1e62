"""Tolerances: by how much a tile may differ from the intermediate that it is, or from the step to one.

They are the budgets by which results are compared (`numerics/bounds`). What is summed so far errs by no more than the
whole sum: bounds grow with each term.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from ..inputs.memory import Array
from ..numerics.bounds import Chain
from ..numerics.budget import rounding_shift, tile_budget
from ..numerics.declared_precision import TINY, U32, U_FUNCTION, Precision, dot_error, long_sum, precision_of
from ..reference import Attention, Tile, evaluate


def tolerances(
    x: Attention, whole: Iterable[tuple[Tile, Mapping[str, Tensor]]], dtype: torch.dtype
) -> dict[str, Array]:
    """By the name of each form that a tile may have, [B, ...] how much each element may differ before it is rounded.

    Args:
        whole: every batch as one tile, with the reference's values on it.
        dtype: of the inputs. Triton's interpreter multiplies them in IEEE whatever it is told.
    """
    precision = precision_of(str(dtype).removeprefix("torch."), "ieee")
    found: dict[str, list[Array]] = {}
    for tile, values in whole:
        for name, error in _errors(x, tile, values, precision, _scaled(x, tile, values, dtype)):
            found.setdefault(name, []).append(error.nan_to_num(0.0, 0.0, 0.0).cpu().numpy())
    return {name: np.stack(errors) for name, errors in found.items()}


def _scaled(x: Attention, tile: Tile, values: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """Twice what values move by where q, or k, is scaled and rounded once more, which right kernels do in 16 bits.

    Twice, since they round other numbers where they scale by another constant.
    """
    if dtype == torch.float32:
        return {}
    moved: dict[str, Tensor] = {}
    factor = x.scale * math.log2(math.e)
    for name in ("q", "k"):
        narrow = (getattr(x, name) * factor).to(dtype).double() / factor
        for of, value in evaluate(replace(x, **{name: narrow}), tile).items():
            by = 2 * (value.double() - values[of].double()).abs().nan_to_num(0.0)
            moved[of] = by.maximum(moved.get(of, by))
    return moved


def _errors(
    x: Attention, tile: Tile, values: Mapping[str, Tensor], precision: Precision, moved: Mapping[str, Tensor]
) -> Iterator[tuple[str, Tensor]]:
    of, scale = Chain(x, tile, values, precision), abs(x.scale)
    budget = tile_budget(x, tile, values, precision, rounding_shift(x, tile, values, precision))
    rows = {name: bound + moved.get(name, 0.0) for name, bound in budget.rows.items()}
    e_s, e_lse, e_p, e_dp = of.e_s + moved.get("S", 0.0), rows["LSE"][..., None], rows["P"], budget.unmasked_dp
    spread = e_dp + rows["delta"][..., None] + U32 * (of.dpe.abs() + of.delta.abs())
    raw = (of.q @ of.k.mT).abs()
    yield from _of_scores(values, of, e_s, e_lse)
    yield from (
        (name, dot_error(of.q, of.k.mT, precision) + moved.get("S", 0.0) / scale + 3 * U32 * raw) for name in _RAW
    )
    yield from (("LSE", rows["LSE"]), ("delta", rows["delta"]), ("P", e_p), ("O", rows["O"]), ("dS", rows["dS"]))
    yield from (("dP", e_dp), ("dP - delta", spread))
    yield from (("P * dP", e_p * of.dp.abs() + of.p * e_dp), ("dT", of.p * spread + e_p * (of.dpe - of.delta).abs()))
    yield "P after dropout", of.share * e_p + of.u_drop * values["PE"].abs()
    yield from ((name, e_p + of.e_z) for name in ("P + tau / (i + 1)", "relu(P + tau / (i + 1))"))
    yield "sum of dP / (i + 1)", e_dp.sum(-1) + U32 * long_sum(e_dp.shape[-1]) * of.dp.abs().sum(-1)
    yield "dS K", rows["dQ"] / scale
    for form, name, factor in (("dS^T Q", "dK", scale), ("dV", "dV", 1.0)):
        alike = (precision.matrix + 2 * U32) * values[name].abs() + TINY
        yield form, (budget.squares[name].sqrt() + budget.sums[name] + alike + moved.get(name, 0.0)) / factor
    if x.softcap is not None:
        yield from _capped(x, of)


_RAW = ("Q K^T", "maximum of Q K^T so far")


def _of_scores(values: Mapping[str, Tensor], of: Chain, e_s: Tensor, e_lse: Tensor) -> Iterator[tuple[str, Tensor]]:
    yield from (("S", e_s), ("maximum of S so far", e_s))
    yield "S - LSE", (e_s + e_lse + U32 * (values["S"].abs() + of.lse.abs())) * of.valid
    # Each term errs by its score and by the maximum; the sum of all is 1 over the largest P of the row.
    terms = ((2 * e_s).expm1() + U_FUNCTION).amax(-1, keepdim=True) + U32 * long_sum(of.valid.shape[-1])
    yield "sum of exp(S - maximum) so far", terms / of.p.amax(-1, keepdim=True)


def _capped(x: Attention, of: Chain) -> Iterator[tuple[str, Tensor]]:
    assert x.softcap is not None
    tanh, e_tanh = (x.scale * of.q @ of.k.mT / x.softcap).tanh(), of.e_s / x.softcap
    squared = 2 * tanh.abs() * e_tanh + e_tanh**2 + U32
    yield from (("tanh^2", squared), ("1 - tanh^2", squared + U32))


def rounded(tolerance: Array, values: Array, dtype: torch.dtype) -> Array:
    """Tolerances, with what it costs to keep values in a dtype, times a constant that is rounded."""
    info = torch.finfo(dtype)
    return tolerance + (np.abs(values) + tolerance) * (info.eps / 2 + 2 * U32) + info.tiny * info.eps / 2
