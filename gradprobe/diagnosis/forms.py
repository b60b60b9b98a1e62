"""The intermediates that a tile may be, and by how much it may differ from each.

What is summed so far errs by no more than the whole sum.
"""

import math
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from ..inputs.memory import Array
from ..numerics.bounds import Chain
from ..numerics.budget import rounding_shift, tile_budget
from ..numerics.declared_precision import (
    TINY,
    U32,
    U_FUNCTION,
    dot_error,
    long_sum,
    precision_of,
)
from ..reference import Attention, Tile, evaluate

Values = dict[str, Tensor]


@dataclass(frozen=True)
class TileForms:
    # By name, [B, H, M, N] or [B, H, M]; none of partial sums.
    values: dict[str, Array] = field(default_factory=dict)
    tolerances: dict[str, float] = field(default_factory=dict)  # before it is rounded


def forms_of(x: Attention, dtype: torch.dtype) -> TileForms:
    found, batches = TileForms(), list[Values]()
    for batch in range(x.n_batch):
        tile = Tile(batch, slice(0, x.n_heads), slice(0, x.n_query))
        on_tile = evaluate(x, tile)
        batches.append(_values(x, tile, on_tile))
        for name, error in _errors(x, tile, on_tile, dtype).items():
            most = float(error.nan_to_num(0.0, 0.0, 0.0).max())
            found.tolerances[name] = max(found.tolerances.get(name, 0.0), most)
    for name in batches[0]:
        found.values[name] = np.stack(
            [values[name].double().cpu().numpy() for values in batches]
        )
    return found


def _values(x: Attention, tile: Tile, on_tile: Values) -> Values:
    q, k, _, _ = x.tensors(tile)
    qk, p, dp, lse = q @ k.mT, on_tile["P"], on_tile["dP"], on_tile["LSE"][..., None]
    found = {name: on_tile[name] for name in ("LSE", "delta", "O", "S", "P", "dS")}
    found |= {"Q K^T": qk, "dP": on_tile["dPE"], "valid": on_tile["valid"].expand(qk.shape)}
    found["dP - delta"] = spread = dp - on_tile["delta"][..., None]
    found["S - LSE"] = torch.where(lse.isfinite(), on_tile["S"] - lse, 0.0)
    if x.softcap is not None:
        squared = (qk * x.scale / x.softcap).tanh() ** 2
        found |= {"tanh^2": squared, "1 - tanh^2": 1 - squared, "dT": p * spread}
    if x.family == "lazy":
        found |= {"P + tau / (i + 1)": on_tile["Z"], "relu(P + tau / (i + 1))": on_tile["PE"]}
        found |= {"P * dP": p * dp, "dP, masked": dp}
    elif x.dropout:
        found["P after dropout"] = on_tile["PE"]
    return found


def _scaled(x: Attention, tile: Tile, on_tile: Values, dtype: torch.dtype) -> Values:
    moved: dict[str, Tensor] = {}
    factor = x.scale * math.log2(math.e)
    for name in ("q", "k") if dtype != torch.float32 else ():
        narrow = (getattr(x, name) * factor).to(dtype).double() / factor
        for of, value in evaluate(replace(x, **{name: narrow}), tile).items():
            by = 2 * (value.double() - on_tile[of].double()).abs().nan_to_num(0.0)
            moved[of] = by.maximum(moved.get(of, by))
    return moved


def _errors(x: Attention, tile: Tile, on_tile: Values, dtype: torch.dtype) -> Values:
    precision = precision_of(str(dtype).removeprefix("torch."), "ieee")
    of, moved = Chain(x, tile, on_tile, precision), _scaled(x, tile, on_tile, dtype)
    scale, shift = abs(x.scale), rounding_shift(x, tile, on_tile, precision)
    budget = tile_budget(x, tile, on_tile, precision, shift)
    rows = {name: bound + moved.get(name, 0.0) for name, bound in budget.rows.items()}
    e_s, e_lse, e_p = of.e_s + moved.get("S", 0.0), rows["LSE"][..., None], rows["P"]
    e_dp, e_pe = budget.unmasked_dp, e_p + of.e_z
    spread = e_dp + rows["delta"][..., None] + U32 * (of.dpe.abs() + of.delta.abs())
    qk = of.q @ of.k.mT
    raw = dot_error(of.q, of.k.mT, precision) + moved.get("S", 0.0) / scale + 3 * U32 * qk.abs()
    # Each term errs by its score and by the maximum; the sum of all is 1 over the largest P of the row.
    terms = ((2 * e_s).expm1() + U_FUNCTION).amax(-1, keepdim=True)
    terms = terms + U32 * long_sum(of.valid.shape[-1])
    found = {name: rows[name] for name in ("LSE", "delta", "P", "O", "dS")}
    found |= {"Q K^T": raw, "maximum of Q K^T so far": raw, "S": e_s, "maximum of S so far": e_s}
    found |= {"dP": e_dp, "dP - delta": spread}
    found |= dict.fromkeys(("P + tau / (i + 1)", "relu(P + tau / (i + 1))"), e_pe)
    found |= {
        "S - LSE": (e_s + e_lse + U32 * (on_tile["S"].abs() + of.lse.abs())) * of.valid,
        "sum of exp(S - maximum) so far": terms / of.p.amax(-1, keepdim=True),
        "P * dP": e_p * of.dp.abs() + of.p * e_dp,
        "dT": of.p * spread + e_p * (of.dpe - of.delta).abs(),
        "P after dropout": of.share * e_p + of.u_drop * on_tile["PE"].abs(),
        "sum of dP / (i + 1)": e_dp.sum(-1)
        + U32 * long_sum(e_dp.shape[-1]) * of.dp.abs().sum(-1),
        "dS K": rows["dQ"] / scale,
    }
    for form, name, factor in (("dS^T Q", "dK", scale), ("dV", "dV", 1.0)):
        alike = (precision.matrix + 2 * U32) * on_tile[name].abs() + TINY + moved.get(name, 0.0)
        found[form] = (budget.squares[name].sqrt() + budget.sums[name] + alike) / factor
    if x.softcap is not None:
        tanh, e_tanh = (x.scale * qk / x.softcap).tanh(), of.e_s / x.softcap
        found["tanh^2"] = 2 * tanh.abs() * e_tanh + e_tanh**2 + U32
        found["1 - tanh^2"] = found["tanh^2"] + U32
    return found


def rounded(tolerance: float, values: float, dtype: torch.dtype) -> float:
    info = torch.finfo(dtype)
    return tolerance + (values + tolerance) * (info.eps / 2 + 2 * U32) + info.tiny * info.eps / 2
