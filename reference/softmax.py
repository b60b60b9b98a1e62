"""Softmax attention (the FlashAttention family), one formula a line.

    S   = scale * Q K^T         T = softcap(S) + bias, -inf where masked        softcap(S) = c * tanh(S / c)
    LSE = log sum_j exp(T)      P = exp(T - LSE)          O = P V

    dP  = dO V^T                delta = rowsum(dO * O)    dT = P * (dP - delta)
    dS  = dT * (1 - tanh(S / c)^2) with softcap, else dT
    dQ  = scale * dS K          dK = scale * dS^T Q       dV = P^T dO       dBias = dT summed over bias's broadcast axes

A row that sees no key has LSE = -inf, and P, O and every gradient of it are 0.

Source: Dao et al., FlashAttention (2022), appendix B.2; tests hold each line against float64 autograd.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from .problem import Attention, Steps, Tile


def evaluate(x: Attention, tile: Tile, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Every intermediate on one tile; see `reference.evaluate`."""
    step = Steps(given)
    q, k, v, do = x.tensors(tile)
    valid = x.valid(tile).expand(q.shape[0], -1, -1)

    s = x.scale * q @ k.mT
    tanh = torch.zeros_like(s) if x.softcap is None else torch.tanh(s / x.softcap)
    capped = s if x.softcap is None else x.softcap * tanh
    biased = capped if x.bias is None else capped + x.bias_part(x.bias, tile)
    t = biased.masked_fill(~valid, -torch.inf)
    lse = step("LSE", t.logsumexp(-1))
    p = step("P", (t - lse.masked_fill(lse == -torch.inf, 0.0)[..., None]).exp())
    o = step("O", p @ v)

    unmasked_dp = do @ v.mT
    dp = step("dP", unmasked_dp * valid)
    delta = step("delta", (do * o).sum(-1))
    dt = p * (dp - delta[..., None])
    ds = step("dS", dt * (1 - tanh**2))
    dt = ds if x.softcap is None else dt
    step("dQ", x.scale * ds @ k)
    step("dK", x.scale * ds.mT @ q)
    step("dV", p.mT @ do)
    if x.bias is not None:
        step("dBias", dt.sum_to_size(x.bias_part(x.bias, tile).shape))
    return step.computed | {"S": t, "PE": p, "dPE": unmasked_dp, "valid": valid}
