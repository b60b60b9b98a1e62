"""Lazy attention, one formula a line. Always causal; valid means j <= i, j < length and i < length.

    S   = scale * Q K^T + bias[h, i - j] for 0 <= i - j < W         a key beyond W is still attended, without bias
    LSE = log sum_j exp(S)      P = exp(S - LSE)          the ordinary softmax
    Z   = P + tau_h / (i + 1)   PE = relu(Z) * valid      O = PE V

    dPE = dO V^T                dP = [Z > 0] * dPE * valid
    delta = rowsum(P * dP)      not rowsum(dO * O), which differs by tau's share
    dS  = P * (dP - delta)      dQ = scale * dS K         dK = scale * dS^T Q        dV = PE^T dO
    dBias[h, w] = sum over i - j = w of dS                dTau_h = sum of dP / (i + 1)

Source: derived by hand from the forward; tests hold each line against float64 autograd and gradcheck.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from .problem import Attention, Steps, Tile

BY_HEAD = {"dTau": "tau"}


def evaluate(
    x: Attention, tile: Tile, given: Mapping[str, Tensor], wanted: Collection[str] | None = None
) -> dict[str, Tensor]:
    """Every intermediate on one tile; see `reference.evaluate`."""
    assert x.tau is not None
    step = Steps(given, wanted)
    q, k, v, do = x.tensors(tile)
    i, j = x.positions(tile)
    valid = x.valid(tile).expand(q.shape[0], -1, -1)

    s = x.once("S", tile, lambda: _scores(x, tile, valid))
    lse = step("LSE", x.once("LSE", tile, lambda: s.logsumexp(-1)))
    p = step("P", (s - lse.masked_fill(lse == -torch.inf, 0.0)[..., None]).exp())
    z = p + x.tau[tile.heads, None, None] / (i + 1)
    pe = z.relu() * valid
    step.product("O", pe, v)

    dpe = x.once("dPE", tile, lambda: do @ v.mT)
    dp = step("dP", dpe * (z > 0) * valid)
    delta = step("delta", (p * dp).sum(-1))
    ds = step("dS", p * (dp - delta[..., None]))
    step.product("dQ", ds, k, x.scale)
    step.product("dK", ds.mT, q, x.scale)
    step.product("dV", pe.mT, do)
    step.last("dTau", lambda: (dp / (i + 1)).sum((-2, -1)))
    if (bias := x.bias) is not None:
        step.last("dBias", lambda: sum_by_distance(ds, i - j, bias.shape[1]))
    return step.computed | {"S": s, "Z": z, "PE": pe, "dPE": dpe, "valid": valid}


def _scores(x: Attention, tile: Tile, valid: Tensor) -> Tensor:
    """[h, m, n]: S."""
    (q, k, _, _), (i, j) = x.tensors(tile), x.positions(tile)
    s = x.scale * q @ k.mT
    s = s if x.bias is None else s + _bias_by_distance(x.bias[tile.heads], i - j, x.n_key)
    return s.masked_fill(~valid, -torch.inf)


def _bias_by_distance(bias: Tensor, distance: Tensor, length: int) -> Tensor:
    """[h, m, n]: bias [h, W] read at each distance i - j of rows and successive keys of `length`, 0 elsewhere."""
    bias = bias[:, :length]
    before, after = bias.new_zeros(len(bias), length - bias.shape[1]), bias.new_zeros(len(bias), length - 1)
    falling = torch.cat([before, bias.flip(1), after], 1)  # at distances length - 1, length - 2 and so on
    return falling.unfold(1, distance.shape[1], 1)[:, length - 1 - distance[:, 0]]


def sum_by_distance(matrix: Tensor, distance: Tensor, window: int) -> Tensor:
    """[h, W]: the sum of a matrix [h, m, n] over each distance i - j in [0, W), of rows and successive keys."""
    at = distance[:, :1] - torch.arange(window, device=matrix.device)
    outside, last = (at < 0) | (at >= matrix.shape[-1]), matrix.shape[-1] - 1
    there = matrix.gather(-1, at.clamp(0, last).expand(len(matrix), -1, -1))
    return there.masked_fill(outside, 0.0).sum(1)
