"""Right in the default case; each is wrong, or may be, in what that case does not use."""

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


def with_softcap(q, k, v, do, softcap=None, bias=None):
    return attention(q, k, v, do)
