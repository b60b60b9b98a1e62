"""Backwards in plain torch, each with one fault, of which the gradients show more or less."""

import torch


def _parts(q, k, v, do, scale, causal=False, left=None):
    scores = q @ k.mT * scale
    every = torch.ones(scores.shape[-2:], dtype=torch.bool)
    if causal:
        scores = scores.masked_fill(every.triu(1), float("-inf"))
    if left is not None:
        scores = scores.masked_fill(every.tril(-1 - left), float("-inf"))
    return scores.softmax(-1), do @ v.mT


def _gradients(q, k, do, p, ds, scale):
    return {"dQ": ds @ k * scale, "dK": ds.mT @ q * scale, "dV": p.mT @ do}


def delta_of_keys(q, k, v, do, scale, causal, window=None):
    """delta is summed over rows, so that each key has one."""
    p, dp = _parts(q, k, v, do, scale, causal, window and window[0])
    delta = (p * dp).sum(dim=2, keepdim=True)
    return _gradients(q, k, do, p, p * (dp - delta), scale)


def every_third_key(q, k, v, do, scale):
    """P of every third key is off by two in a thousand; no LSE is read."""
    p, dp = _parts(q, k, v, do, scale)
    p = p * torch.where(torch.arange(k.shape[2]) % 3 == 0, 1.002, 1.0)
    return _gradients(q, k, do, p, p * (dp - (p * dp).sum(-1, keepdim=True)), scale)


def noisy_p(q, k, v, do, scale):
    p, dp = _parts(q, k, v, do, scale)
    p = p * (1 + 1e-3 * torch.sin(1e4 * p))
    return _gradients(q, k, do, p, p * (dp - (p * dp).sum(-1, keepdim=True)), scale)


def warmer_rows(q, k, v, do, scale):
    """P of each row has a factor of its own."""
    p, dp = _parts(q, k, v, do, scale)
    p = p * (1 + torch.arange(q.shape[2]) / 10)[:, None]
    return _gradients(q, k, do, p, p * (dp - (p * dp).sum(-1, keepdim=True)), scale)


CALLS = []


def twice(q, k, v, do, scale):
    """dV is off by a factor that grows with each call."""
    CALLS.append(None)
    p, dp = _parts(q, k, v, do, scale)
    gradients = _gradients(q, k, do, p, p * (dp - (p * dp).sum(-1, keepdim=True)), scale)
    return gradients | {"dV": (1 + len(CALLS)) * gradients["dV"]}


def mask_forgotten(q, k, v, do, scale, mask):
    s = q @ k.mT * scale
    seen = s.masked_fill(~mask, -torch.inf)
    lse = seen.logsumexp(-1, keepdim=True)
    p, dp = torch.exp(seen - lse), do @ v.mT
    delta = (do * (p @ v)).sum(-1, keepdim=True)
    ds, forgotten = p * (dp - delta), torch.exp(s - lse) * (dp - delta)
    return {"dQ": forgotten @ k * scale, "dK": ds.mT @ q * scale, "dV": p.mT @ do}


def two_errors(q, k, v, do, scale):
    """P is off by a little in its first row, and by far more in the keys behind the tenth of later ones."""
    p, dp = (q @ k.mT * scale).softmax(-1), do @ v.mT
    p[:, :, 0] *= 1 + 2e-5
    p[:, :, 7:, 10:] *= 1.5
    ds = p * (dp - (p * dp).sum(-1, keepdim=True))
    return {"P": p, "dQ": ds @ k * scale, "dK": ds.mT @ q * scale, "dV": p.mT @ do}


def slightly(q, k, v, do, scale):
    p, dp = (q @ k.mT * scale).softmax(-1), do @ v.mT
    ds = p * (dp - (p * dp).sum(-1, keepdim=True))
    return {"dQ": ds @ k * scale, "dK": ds.mT @ q * scale, "dV": p.mT @ do + 1e-4}
