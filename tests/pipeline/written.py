"""References as people write them by hand: some wrong, each in another way, and some that are right."""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 - as people write it

# ruff: noqa: N803, N806 - people write matrices in capitals


# --- wrong


def unmasked_again(q, k, v, do, causal=True):
    scale = q.shape[-1] ** -0.5
    S = q @ k.transpose(-1, -2) * scale
    hidden = torch.ones(S.shape[-2:], dtype=torch.bool).triu(1)
    masked = S.masked_fill(hidden, float("-inf")) if causal else S
    P = torch.softmax(masked, dim=-1)
    O = P @ v  # noqa: E741
    P = torch.softmax(S, dim=-1)
    dV = P.transpose(-1, -2) @ do
    dP = do @ v.transpose(-1, -2)
    dS = P * (dP - (do * O).sum(-1, keepdim=True))
    return {"O": O, "dQ": dS @ k * scale, "dK": dS.transpose(-1, -2) @ q * scale, "dV": dV}


def no_scale_of_gradients(q, k, v, do, is_causal=False):
    s = torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(q.shape[-1])
    if is_causal:
        s = s + torch.full(s.shape[-2:], float("-inf")).triu(1)
    p = s.softmax(-1)
    o = torch.einsum("bhij,bhjd->bhid", p, v)
    ds = p * (torch.einsum("bhid,bhjd->bhij", do, v) - (do * o).sum(-1, keepdim=True))
    dq = torch.einsum("bhij,bhjd->bhid", ds, k)
    dk = torch.einsum("bhij,bhid->bhjd", ds, q)
    dv = torch.einsum("bhij,bhid->bhjd", p, do)
    return dq, dk, dv


def over_the_wrong_axis(q, k, v, do):
    scale = q.shape[-1] ** -0.5
    p = torch.softmax(q @ k.mT * scale, dim=-2)
    ds = p * (do @ v.mT - (do * (p @ v)).sum(-1, keepdim=True))
    return {"O": p @ v, "dQ": ds @ k * scale, "dK": ds.mT @ q * scale, "dV": p.mT @ do}


def mean_for_sum(q, k, v, do, causal=False):
    scale = q.shape[-1] ** -0.5
    s = q @ k.mT * scale
    if causal:
        s[..., torch.ones(s.shape[-2:], dtype=torch.bool).triu(1)] = -1e9
    p = torch.exp(s - s.max(-1, keepdim=True).values)
    p /= p.sum(-1, keepdim=True)
    dp = do @ v.mT
    delta = (p * dp).mean(-1, keepdim=True)
    ds = p * (dp - delta)
    return scale * ds @ k, scale * ds.mT @ q, p.mT @ do


def masked_afterwards(Q, K, V, dO):
    L, D = Q.shape[-2:]
    S = Q @ K.mT / D**0.5
    P = F.softmax(S, dim=-1) * torch.ones(L, L).tril()
    dP = dO @ V.mT
    dS = P * (dP - (dO * (P @ V)).sum(-1, keepdim=True)) / D**0.5
    return {"O": P @ V, "dQ": dS @ K, "dK": dS.mT @ Q, "dV": P.mT @ dO}


def keys_and_values_swapped(q, k, v, do):
    scale = q.shape[-1] ** -0.5
    p = torch.softmax(q @ v.mT * scale, -1)
    dp = do @ k.mT
    ds = p * (dp - (p * dp).sum(-1, keepdim=True)) * scale
    return {"dQ": ds @ v, "dV": ds.mT @ q, "dK": p.mT @ do}


WRONG = {
    "keys_and_values_swapped": ("swap/k-v", "def keys_and_values_swapped(q, k, v, do):"),
    "unmasked_again": ("mask/causal", "P = torch.softmax(S, dim=-1)"),
    "no_scale_of_gradients": ("factor/dS", 'dq = torch.einsum("bhij,bhjd->bhid", ds, k)'),
    "over_the_wrong_axis": ("formula/softmax", "p = torch.softmax(q @ k.mT * scale, dim=-2)"),
    "mean_for_sum": ("delta/mean", "delta = (p * dp).mean(-1, keepdim=True)"),
    "masked_afterwards": ("mask/after", "P = F.softmax(S, dim=-1) * torch.ones(L, L).tril()"),
    "in_float16": ("precision/float16", "q, k, v, do = q.half(), k.half()"),
    "scale_ignored": ("formula/scale", "s = q @ k.mT * scale"),
    "of_the_sum": ("formula/dO", "o.sum().backward()"),
    "lazy_with_delta_of_o": ("delta/formula", "delta = (do * o).sum(-1, keepdim=True)"),
}
"""By name: what is wrong with it, and how its line begins."""


# --- right


def by_formulas(q, k, v, do, scale=None):
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    p = torch.softmax(q @ k.mT * scale, dim=-1)
    dp = do @ v.mT
    ds = p * (dp - (p * dp).sum(-1, keepdim=True))
    return ds @ k * scale, ds.mT @ q * scale, p.mT @ do


class Gradients(NamedTuple):
    dq: torch.Tensor
    dk: torch.Tensor
    dv: torch.Tensor


def rows_before_heads(q, k, v, dout, causal=True):
    scale, L = q.shape[-1] ** -0.5, q.shape[1]
    s = torch.einsum("bthd,bshd->bhts", q * scale, k)
    if causal:
        s = s.masked_fill(torch.arange(L)[:, None] < torch.arange(L)[None, :], float("-inf"))
    p = torch.softmax(s, -1)
    dp = torch.einsum("bthd,bshd->bhts", dout, v)
    ds = p * (dp - torch.einsum("bhts,bhts->bht", p, dp)[..., None]) * scale
    dq, dk = torch.einsum("bhts,bshd->bthd", ds, k), torch.einsum("bhts,bthd->bshd", ds, q)
    return Gradients(dq, dk, torch.einsum("bhts,bthd->bshd", p, dout))


RIGHT = {"rows_before_heads": "blhd", "by_formulas": "bhld", "by_grad": "bhld"}
"""By name: in which order of axes it takes its tensors."""


# --- further ones: narrow arithmetic, another loss, lazy attention


def in_float16(q, k, v, do):
    q, k, v, do = q.half(), k.half(), v.half(), do.half()
    p = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1)
    dp = do @ v.mT
    ds = p * (dp - (p * dp).sum(-1, keepdim=True)) * q.shape[-1] ** -0.5
    return ds @ k, ds.mT @ q, p.mT @ do


def of_the_sum(q, k, v, do):
    q, k, v = (x.clone().requires_grad_() for x in (q, k, v))
    o = torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), -1) @ v
    o.sum().backward()
    return q.grad, k.grad, v.grad


def by_grad(q, k, v, do):
    q, k, v = (x.clone().requires_grad_() for x in (q, k, v))
    o = torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), -1) @ v
    return torch.autograd.grad(o, (q, k, v), do)


def lazy_with_delta_of_o(q, k, v, do, tau):
    L, scale = q.shape[-2], q.shape[-1] ** -0.5
    i = torch.arange(L)
    hidden = i[:, None] < i
    p = (q @ k.mT * scale).masked_fill(hidden, float("-inf")).softmax(-1)
    z = p + tau[:, None, None] / (i + 1)[:, None]
    pe = z.relu().masked_fill(hidden, 0)
    o = pe @ v
    dp = do @ v.mT * (z > 0) * ~hidden
    delta = (do * o).sum(-1, keepdim=True)
    ds = p * (dp - delta)
    return {"O": o, "dQ": scale * ds @ k, "dK": scale * ds.mT @ q, "dV": pe.mT @ do}


def scale_ignored(q, k, v, do, scale=None):
    scale = q.shape[-1] ** -0.5
    s = q @ k.mT * scale
    p = s.softmax(-1)
    dp = do @ v.mT
    ds = p * (dp - (p * dp).sum(-1, keepdim=True)) * scale
    return ds @ k, ds.mT @ q, p.mT @ do
