"""Tolerances: by how much a tile may differ from the intermediate that it is, or from the step to one.

They are the budgets by which results are compared (`numerics/bounds`). What is summed so far errs by no more than the
whole sum: bounds grow with each term.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from ..numerics.bounds import Chain
from ..numerics.budget import rounding_shift, tile_budget
from ..numerics.declared_precision import TINY, U32, U_FUNCTION, Precision, dot_error, long_sum, precision_of
from ..reference import Attention, Tile, evaluate


def tolerances(
    x: Attention, whole: Iterable[tuple[Tile, Mapping[str, Tensor]]], dtype: torch.dtype
) -> dict[str, float]:
    """By the name of each form that a tile may have, how much any element may differ before it is rounded.

    Args:
        whole: every batch as one tile, with the reference's values on it.
        dtype: of the inputs. Triton's interpreter multiplies them in IEEE whatever it is told.
    """
    precision = precision_of(str(dtype).removeprefix("torch."), "ieee")
    found: dict[str, float] = {}
    for tile, values in whole:
        for name, error in _errors(x, tile, values, precision, _scaled(x, tile, values, dtype)).items():
            found[name] = max(found.get(name, 0.0), float(error.nan_to_num(0.0, 0.0, 0.0).max()))
    return found


def _scaled(x: Attention, tile: Tile, values: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """Twice what values move by where q, or k, is scaled and rounded once more, which right kernels do in 16 bits.

    Twice, since they round other numbers where they scale by another constant.
    """
    moved: dict[str, Tensor] = {}
    if dtype == torch.float32:
        return moved
    factor = x.scale * math.log2(math.e)
    for name in ("q", "k"):
        narrow = (getattr(x, name) * factor).to(dtype).double() / factor
        for of, value in evaluate(replace(x, **{name: narrow}), tile).items():
            by = 2 * (value.double() - values[of].double()).abs().nan_to_num(0.0)
            moved[of] = by.maximum(moved.get(of, by))
    return moved


def _errors(
    x: Attention, tile: Tile, values: Mapping[str, Tensor], precision: Precision, moved: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    of, scale = Chain(x, tile, values, precision), abs(x.scale)
    budget = tile_budget(x, tile, values, precision, rounding_shift(x, tile, values, precision))
    rows = {name: bound + moved.get(name, 0.0) for name, bound in budget.rows.items()}
    e_s, e_lse, e_p = of.e_s + moved.get("S", 0.0), rows["LSE"][..., None], rows["P"]
    e_dp, e_pe = budget.unmasked_dp, e_p + of.e_z
    spread = e_dp + rows["delta"][..., None] + U32 * (of.dpe.abs() + of.delta.abs())
    raw = dot_error(of.q, of.k.mT, precision) + moved.get("S", 0.0) / scale + 3 * U32 * (of.q @ of.k.mT).abs()
    # Each term errs by its score and by the maximum; the sum of all is 1 over the largest P of the row.
    terms = ((2 * e_s).expm1() + U_FUNCTION).amax(-1, keepdim=True) + U32 * long_sum(of.valid.shape[-1])
    sums = e_dp.sum(-1) + U32 * long_sum(e_dp.shape[-1]) * of.dp.abs().sum(-1)
    found = {name: rows[name] for name in ("LSE", "delta", "P", "O", "dS")}
    found |= {
        "Q K^T": raw,
        "maximum of Q K^T so far": raw,
        "S": e_s,
        "maximum of S so far": e_s,
        "S - LSE": (e_s + e_lse + U32 * (values["S"].abs() + of.lse.abs())) * of.valid,
        "sum of exp(S - maximum) so far": terms / of.p.amax(-1, keepdim=True),
        "dP": e_dp,
        "dP - delta": spread,
        "P * dP": e_p * of.dp.abs() + of.p * e_dp,
        "dT": of.p * spread + e_p * (of.dpe - of.delta).abs(),
        "P after dropout": of.share * e_p + of.u_drop * values["PE"].abs(),
        "P + tau / (i + 1)": e_pe,
        "relu(P + tau / (i + 1))": e_pe,
        "sum of dP / (i + 1)": sums,
        "dS K": rows["dQ"] / scale,
    }
    for form, name, factor in (("dS^T Q", "dK", scale), ("dV", "dV", 1.0)):
        alike = (precision.matrix + 2 * U32) * values[name].abs() + TINY
        found[form] = (budget.squares[name].sqrt() + budget.sums[name] + alike + moved.get(name, 0.0)) / factor
    if x.softcap is not None:
        tanh, e_tanh = (x.scale * of.q @ of.k.mT / x.softcap).tanh(), of.e_s / x.softcap
        found["tanh^2"] = 2 * tanh.abs() * e_tanh + e_tanh**2 + U32
        found["1 - tanh^2"] = found["tanh^2"] + U32
    return found


def rounded(tolerance: float, values: float, dtype: torch.dtype) -> float:
    """A tolerance, with what it costs to keep values of that size in a dtype, times a constant that is rounded."""
    info = torch.finfo(dtype)
    return tolerance + (values + tolerance) * (info.eps / 2 + 2 * U32) + info.tiny * info.eps / 2
