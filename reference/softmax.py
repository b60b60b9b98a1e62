"""Softmax attention (the FlashAttention family), one formula a line.

    S   = scale * Q K^T         T = softcap(S) + bias - alibi_h * |diagonal(i) - j|, -inf where masked
    LSE = log(exp(sink_h) + sum_j exp(T))                 P = exp(T - LSE)      softcap(S) = c * tanh(S / c)
    PE  = P * keep / (1 - p)    O = PE V

    dP  = keep / (1 - p) * dO V^T                         delta = rowsum(dO * O)
    dT  = P * (dP - delta)      dS = dT * (1 - tanh(S / c)^2) with softcap, else dT
    dQ  = scale * dS K          dK = scale * dS^T Q       dV = PE^T dO
    dBias = dT summed over bias's broadcast axes          dSink_h = -sum over b, i of exp(sink_h - LSE) * delta
    dAlibi_h = -sum over b, i, j of |diagonal(i) - j| * dT

What the case does not have drops out: exp(sink) without sinks, keep / (1 - p) without dropout.

Masked are what causal and the window hide, counted from diagonal(i) = i + N - M (aligned to the bottom right) or i (to
the top left); what `mask` does not allow; what lies beyond a length; and the keys of another packed sequence, each of
which has a diagonal of its own. The sink is a logit of the denominator alone: no key and no value belongs to it.

A row that sees no key has LSE = -inf (its sink, where there is one), and P, O and every gradient of it are 0.

Source: Dao et al., FlashAttention (2022), appendix B.2, and Press et al., Train Short, Test Long (2022), for the
distances; the sink's derivative is that of LSE. Tests hold each line against float64 autograd.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from .problem import Attention, Steps, Tile, kept_share

BY_HEAD = {"dSink": "sinks", "dAlibi": "alibi"}


def evaluate(
    x: Attention, tile: Tile, given: Mapping[str, Tensor], wanted: Collection[str] | None = None
) -> dict[str, Tensor]:
    """Every intermediate on one tile; see `reference.evaluate`."""
    step = Steps(given, wanted)
    q, k, v, do = x.tensors(tile)
    valid = x.valid(tile).expand(q.shape[0], -1, -1)
    share = kept_share(x, tile)

    tanh, t = x.once("S", tile, lambda: _scores(x, tile, valid))
    lse = x.once("LSE", tile, lambda: t.logsumexp(-1))
    lse = step("LSE", lse if x.sinks is None else torch.logaddexp(lse, x.sinks[tile.heads, None]))
    p = step("P", (t - lse.masked_fill(lse == -torch.inf, 0.0)[..., None]).exp_())
    pe = p if share is None else p * share
    o = step("O", pe @ v)

    unmasked_dp = x.once("dPE", tile, lambda: do @ v.mT if share is None else share * (do @ v.mT))
    dp = step("dP", unmasked_dp * valid)
    delta = step("delta", (do * o).sum(-1))
    dt = (dp - delta[..., None]).mul_(p)
    ds = step("dS", dt if x.softcap is None else dt * (1 - tanh**2))
    dt = ds if x.softcap is None else dt
    step.product("dQ", ds, k, x.scale)
    step.product("dK", ds.mT, q, x.scale)
    step.product("dV", pe.mT, do)
    if (bias := x.bias) is not None:
        step.last("dBias", lambda: dt.sum_to_size(x.bias_part(bias, tile).shape))
    if x.sinks is not None:
        step.last("dSink", lambda: -(sink_weight(x, tile, lse) * delta).sum(-1))
    if x.alibi is not None:
        step.last("dAlibi", lambda: -(distance(x, tile) * dt).sum((-2, -1)))
    return step.computed | {"S": t, "PE": pe, "dPE": unmasked_dp, "valid": valid}


def _scores(x: Attention, tile: Tile, valid: Tensor) -> tuple[Tensor, Tensor]:
    """[h, m, n]: the tanh of the softcap, one 0 without; and T."""
    q, k, _, _ = x.tensors(tile)
    s = x.scale * q @ k.mT
    tanh = s.new_zeros(()) if x.softcap is None else torch.tanh(s / x.softcap)
    t = s if x.softcap is None else x.softcap * tanh
    t = t if x.bias is None else t + x.bias_part(x.bias, tile)
    t = t if x.alibi is None else t - x.alibi[tile.heads, None, None] * distance(x, tile)
    return tanh, t.masked_fill_(~valid, -torch.inf)


def distance(x: Attention, tile: Tile) -> Tensor:
    """[m, n] how far each key lies from the row's diagonal, float64."""
    _, j = x.positions(tile)
    return (x.diagonal(tile) - j).abs().double()


def sink_weight(x: Attention, tile: Tile, lse: Tensor) -> Tensor:
    """[h, m] exp(sink - LSE), what the sink takes of each row. 0 where LSE is -inf, as some write it for dead rows."""
    assert x.sinks is not None
    return (x.sinks[tile.heads, None] - lse.masked_fill(lse == -torch.inf, torch.inf)).exp()
