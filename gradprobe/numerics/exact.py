"""What right kernels may err by where every rounding to 16 bits is exact: next to nothing.

Where P, O, dP, delta and dS are numbers of 16 bits, rounding them changes nothing, and what is left is float32's. P
comes of two functions, log and exp, good to 2^-22 each, and of a few roundings of 2^-24: it errs by less than 2^-20 of
itself. All else is sums of terms in which P is a factor. They round less than that: terms of a few bits add up without
any rounding until their sum has 24. So a value errs by less than 2^-20 of the sum of its terms' absolute values, its
companion, and LAMBDA times as much is allowed.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from ..reference import Attention, Tile
from ..reference.problem import kept_share
from .declared_precision import EXACT, TINY, Precision, nearest
from .totals import totals_of

# Of what is 1 or more: far above float64's own roundings, and far below those that matter.
_NOTHING = 2.0**-40


def is_exact(
    x: Attention, tile: Tile, values: Mapping[str, Tensor], precision: Precision
) -> bool:
    """Whether a right kernel rounds nothing of a tile to 16 bits; O of the lazy family but by what tau adds."""
    free = {"O": _of_tau(x, tile, values) @ x.tensors(tile)[2].abs()}
    for name in ("P", "O", "dP", "delta", "dS"):
        off = (values[name] - nearest(precision, values[name])).abs()
        if not bool((off <= _NOTHING * (1 + values[name].abs()) + free.get(name, 0.0)).all()):
            return False
    return True


def _of_tau(x: Attention, tile: Tile, values: Mapping[str, Tensor]) -> Tensor:
    """[h, m, N] the part of PE that is not P: tau / (i + 1) where the ReLU lets it through."""
    share = kept_share(x, tile)
    return (values["PE"] - (values["P"] if share is None else values["P"] * share)).abs()


def companions(x: Attention, tile: Tile, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What every intermediate of a tile may err by, dPE (dO V^T before any mask) included.

    Of the lazy family's PE all that tau adds to P may be lost, as 16 bits lose it.
    """
    q, k, v, do = (tensor.abs() for tensor in x.tensors(tile))
    p, pe, lost = values["P"], values["PE"].abs(), _of_tau(x, tile, values)
    share = kept_share(x, tile)
    dpe = do @ v.mT if share is None else share * (do @ v.mT)
    dp = dpe * (values["valid"] if x.tau is None else values["Z"] > 0)
    of_p = EXACT * p + TINY * values["valid"]
    of_pe = EXACT * pe + lost + TINY * values["valid"]
    of_o = of_pe @ v
    delta = (of_p * dp).sum(-1) + (do * of_o).sum(-1)
    ds = of_p * dp + p * delta[..., None]
    lse = values["LSE"].abs().nan_to_num(0.0, 0.0, 0.0)
    found = {
        "LSE": EXACT * (1 + lse),
        "P": of_p,
        "O": of_o,
        "dPE": EXACT * dpe,
        "dP": EXACT * dp,
        "delta": delta,
    }
    found |= {
        "dS": ds,
        "dQ": abs(x.scale) * ds @ k,
        "dK": abs(x.scale) * ds.mT @ q,
        "dV": of_pe.mT @ do,
    }
    of_sink = delta + found["LSE"] * values["delta"].abs()
    return found | totals_of(x, tile, values, {"dT": ds, "dP": found["dP"], "delta": of_sink})
