"""By how much float64 may be off the formulas: what is allowed where two ways of one sum are to agree.

A sum of n numbers, in any order, errs by gamma(n) of the sum of their absolute values (Higham, Accuracy and Stability
of Numerical Algorithms, 2002, lemma 3.1 and section 4.2), and by what each of them errs by. exp, log and tanh err by a
unit in the last place, 2 U.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from gradprobe.numerics.declared_precision import softcap_slope
from gradprobe.numerics.totals import like_bias
from gradprobe.reference import Attention, Tile
from gradprobe.reference.problem import kept_share
from gradprobe.reference.softmax import distance, sink_weight

U, TINY = 2.0**-53, 2.0**-1022


def gamma(roundings: int) -> float:
    """What so many roundings, one upon another, come to."""
    return roundings * U / (1 - roundings * U)


def rounded(x: Attention, tile: Tile, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The most that the intermediates of a tile may be off, in their shapes, where the ReLU lets the same through.

    Args:
        values: what `reference.evaluate` gives.
    """
    (q, k, v, do), scale = (one.abs() for one in x.tensors(tile)), abs(x.scale)
    p, pe, dp, delta = (values[name].abs() for name in ("P", "PE", "dP", "delta"))
    score, lse = (
        values["S"].masked_fill(~values["valid"], 0.0),
        values["LSE"].nan_to_num(neginf=0.0),
    )
    spread = (values["dP"] - values["delta"][..., None]).abs()
    drop = 1.0 if x.keep is None else kept_share(x, tile)

    product = scale * (q @ k.mT)
    e_product = gamma(q.shape[-1] + 1) * product
    e_score = e_product + gamma(8) * _terms(x, tile, product, score)
    exponent = (score - lse[..., None]).abs()
    # A sum of exponentials, and what its logarithm, at most n, and the row's largest score and sink are added by.
    n = x.n_key + 1
    e_lse = (p * (e_score + U * exponent)).sum(-1) + gamma(n + 8) * (n + lse.abs() + _sink(x, tile))
    e_p = p * (e_score + e_lse[..., None] + U * exponent + 2 * U).expm1() + TINY
    e_pe = drop * (e_p + gamma(4) * (p + pe))
    o = pe @ v
    e_o = e_pe @ v + gamma(n) * o
    e_dp = values["valid"] * drop * gamma(v.shape[-1] + 3) * (do @ v.mT)
    if x.family == "lazy":
        e_delta = (e_p * dp + (p + e_p) * e_dp).sum(-1) + gamma(n) * (p * dp).sum(-1)
    else:
        e_delta = (do * (e_o + gamma(v.shape[-1]) * o)).sum(-1)
    dt = p * spread
    e_dt = e_p * spread + (p + e_p) * (e_dp + e_delta[..., None]) + gamma(2) * dt
    slope = softcap_slope(x, *x.tensors(tile)[:2])
    e_ds = e_dt * slope + (dt + e_dt) * (
        0.0 if x.softcap is None else 2 * e_product / x.softcap + gamma(12)
    )
    ds = dt * slope
    errors = {"LSE": e_lse, "P": e_p, "O": e_o, "dP": e_dp, "delta": e_delta, "dS": e_ds}
    errors["dQ"] = scale * (e_ds @ k + gamma(n + 1) * (ds @ k))
    terms = x.n_heads * x.n_query * n  # the most that one sum has, tiles and all
    if x.bias is not None:
        errors["dBias"] = like_bias(x, tile, e_dt + gamma(terms) * dt)
    if x.tau is not None:
        i, _ = x.positions(tile)
        errors["dTau"] = ((e_dp + gamma(terms) * dp) / (i + 1)).sum((-2, -1))
    if x.alibi is not None:
        errors["dAlibi"] = (distance(x, tile) * (e_dt + gamma(terms) * dt)).sum((-2, -1))
    if x.sinks is not None:
        weight = sink_weight(x, tile, values["LSE"])
        of_weight = e_lse + U * (_sink(x, tile) + lse.abs()) + gamma(terms)
        errors["dSink"] = (weight * (e_delta + delta * of_weight)).sum(-1)
    return errors


def agree(actual: Tensor, expected: Tensor, error: Tensor) -> bool:
    """Whether two numbers of which each may be off by as much are one in exact arithmetic."""
    return bool(((actual == expected) | ((actual - expected).abs() <= 2 * error)).all())


def let_through_alike(one: Mapping[str, Tensor], other: Mapping[str, Tensor], tile: Tile) -> bool:
    """Whether rounding decides nowhere what the ReLU lets through: of all keys, and of those of the tile."""
    return bool(((one["PE"][..., tile.keys] > 0) == (other["PE"] > 0)).all())


def _terms(x: Attention, tile: Tile, product: Tensor, score: Tensor) -> Tensor:
    """At least what any number is on the way from the product to the score: with a bias, a distance, or both."""
    if x.family == "lazy" or x.alibi is None:
        return product + score.abs()
    return product + score.abs() + x.alibi[tile.heads, None, None].abs() * distance(x, tile)


def _sink(x: Attention, tile: Tile) -> Tensor | float:
    return 0.0 if x.sinks is None else x.sinks[tile.heads, None].abs()
