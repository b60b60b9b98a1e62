"""Right in the default case; each is wrong, or may be, in what that case does not use."""

import os

import torch


def attention(q, k, v, do, scale=None, causal=False):
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    scores = (q @ k.mT * scale).double()
    if causal:
        rows, keys = scores.shape[-2:]
        hidden = torch.ones(rows, keys).triu(1 + keys - rows).bool()
        scores = scores.masked_fill(hidden, -torch.inf)
    p, dp = scores.softmax(-1), (do @ v.mT).double()
    ds = p * (dp - (p * dp).sum(-1, keepdim=True))
    dq, dk, dv = ds @ k.double() * scale, ds.mT @ q.double() * scale, p.mT @ do.double()
    return {name: value.to(q.dtype) for name, value in (("dQ", dq), ("dK", dk), ("dV", dv))}


def _with(change):
    """The gradients, of which something changes what it will in place."""

    def backward(q, k, v, do):
        found = attention(q, k, v, do)
        change(found, q, k)
        return found

    return backward


of_two_batches = _with(lambda found, q, k: found["dK"][2:].copy_(found["dK"][:1].clone()))
no_row_alone = _with(lambda found, q, k: found["dV"].mul_(2.0 if q.shape[2] == 1 else 1.0))


def causal_alone(q, k, v, do, causal=False):
    found = attention(q, k, v, do, causal=causal)
    return found | {"dQ": found["dQ"] * (1.5 if causal else 1.0)}


def deaf_to_scale(q, k, v, do, scale=None):
    return attention(q, k, v, do)


def first_of_a_group(q, k, v, do):
    """The gradients of a key head are those of its group's first head, in place of their sum."""
    groups = q.shape[1] // k.shape[1]
    found = attention(q, *(each.repeat_interleave(groups, 1) for each in (k, v)), do)
    return found | {name: found[name][:, ::groups] for name in ("dK", "dV")}


def one_key_head_each(q, k, v, do):
    """Takes a key head for each query head, and says so nowhere: with fewer, the last stands for those missing."""
    heads = torch.arange(q.shape[1]).clamp(max=k.shape[1] - 1)
    found = attention(q, k[:, heads], v[:, heads], do)
    return found | {name: found[name][:, : k.shape[1]] for name in ("dK", "dV")}


def without_maximum(q, k, v, do):
    scale = q.shape[-1] ** -0.5
    p = (q @ k.mT * scale).exp()
    p, dp = p / p.sum(-1, keepdim=True), do @ v.mT
    ds = p * (dp - (p * dp).sum(-1, keepdim=True)) * scale
    return {"dQ": ds @ k, "dK": ds.mT @ q, "dV": p.mT @ do}


def ends_its_process(q, k, v, do):
    if k.shape[1] < q.shape[1]:
        os._exit(7)
    return attention(q, k, v, do)


def with_softcap(q, k, v, do, softcap=None, bias=None):
    return attention(q, k, v, do)
