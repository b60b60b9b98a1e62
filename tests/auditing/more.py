"""Further references as people write them: a shadowed parameter, narrow arithmetic, another loss, lazy attention."""

import math

import torch


def o_shadowed(q, k, v, do, o, lse):
    scale = q.shape[-1] ** -0.5
    p = torch.exp(q @ k.mT * scale - lse[..., None])
    o = p.mT @ do
    ds = p * (do @ v.mT - (do * o).sum(-1, keepdim=True)) * scale
    return ds @ k, ds.mT @ q, o


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


def other_units_on_the_way(q, k, v, do):
    scale = q.shape[-1] ** -0.5
    s = q @ k.mT * scale
    p = s.softmax(-1)
    dp = do @ v.mT
    ds = p * (dp - (p * dp).sum(-1, keepdim=True)) * scale
    lse = s.logsumexp(-1) / math.log(2)
    return {"dQ": ds @ k, "dK": ds.mT @ q, "dV": p.mT @ do, "dS": ds, "LSE": lse}


def by_grad(q, k, v, do):
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
