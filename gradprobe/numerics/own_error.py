"""What the reference itself may err by, where its products are split: a term of the budget.

Each of its products a b errs by at most a share of what a kernel's is allowed, eta(terms) |a| |b|. From there on errors
are added as they are, to first order (P's to all): they need not be independent.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from ..reference import Attention, Tile
from ..reference.softmax import kept_share
from .bounds import UNBOUNDED
from .declared_precision import Precision, long_sum
from .totals import totals_of

# The largest derivative of 1 - tanh^2, where tanh^2 is 1/3.
STEEPEST = 4 / 3**1.5


def own_error(
    x: Attention, tile: Tile, values: Mapping[str, Tensor], precision: Precision, share: float
) -> dict[str, Tensor]:
    """By intermediate, in the tile's shapes; dPE as well.

    Args:
        values: what `reference.evaluate` gives.
        share: of what a kernel's product is allowed.
    """
    (q, k, v, do), scale, valid = (one.abs() for one in x.tensors(tile)), abs(x.scale), values["valid"]
    p, pe, ds, dp = (values[name].abs() for name in ("P", "PE", "dS", "dP"))
    kept = kept_share(x, tile)
    drop = 1.0 if kept is None else kept

    def eta(terms: int) -> float:
        return share * precision.accumulate * long_sum(terms)

    of_keys, of_rows = eta(x.n_key), eta(x.n_query * x.n_heads // x.k.shape[1])
    s = scale * eta(q.shape[-1]) * (q @ k.mT) * valid
    lse = (p * s).sum(-1, keepdim=True)
    e_p = p * (s + lse).clamp(max=UNBOUNDED).expm1()
    e_pe = drop * e_p
    o = e_pe @ v + of_keys * (pe @ v)
    dpe = drop * eta(do.shape[-1]) * (do @ v.mT)
    of_dp = dpe * valid
    # By P and dP in the lazy family, by dO and O in the other: either is within both.
    delta = (e_p * dp + p * of_dp).sum(-1, keepdim=True) + (do * o).sum(-1, keepdim=True)
    spread = (values["dP"] - values["delta"][..., None]).abs()
    dt = e_p * spread + p * (of_dp + delta)
    of_ds = dt if x.softcap is None else dt + s * (STEEPEST / x.softcap) * p * spread
    found = {"LSE": lse[..., 0], "P": e_p, "O": o, "dPE": dpe, "dP": of_dp, "delta": delta[..., 0], "dS": of_ds}
    found["dQ"] = scale * (of_ds @ k + of_keys * (ds @ k))
    found["dK"] = scale * (of_ds.mT @ q + of_rows * (ds.mT @ q))
    found["dV"] = e_pe.mT @ do + of_rows * (pe.mT @ do)
    of_sink = delta[..., 0] + lse[..., 0] * values["delta"].abs()
    return found | totals_of(x, tile, values, {"dT": dt, "dP": of_dp, "delta": of_sink})
