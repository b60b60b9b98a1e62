"""A softmax attention backward in plain torch, a function a kernel: faults are planted in its text. It has dropout."""

import functools

import torch


def ahead_of(q, k):
    """[M, N]: how far each key lies ahead of the diagonal, which ends in the last key."""
    shift = k.shape[2] - q.shape[2]
    return torch.arange(k.shape[2]) - torch.arange(q.shape[2])[:, None] - shift


def visible(q, k, causal, window, mask):
    """[B, H, M, N] bool."""
    ahead, (left, right) = ahead_of(q, k), window or (-1, -1)
    seen = ahead <= 0 if causal else ahead == ahead
    seen = seen & (ahead >= -left) if left >= 0 else seen
    seen = seen & (ahead <= right) if right >= 0 else seen
    return (seen if mask is None else seen & mask).expand(*q.shape[:3], -1)


def scores(q, k, seen, scale, alibi, softcap):
    """The scores, and what the softcap multiplies their gradient by."""
    s, slope = q @ k.mT * scale, 1.0
    if softcap is not None:
        t = torch.tanh(s / softcap)
        s, slope = softcap * t, 1 - t * t
    if alibi is not None:
        s = s - alibi[:, None, None] * ahead_of(q, k).abs()
    return s.masked_fill(~seen, -torch.inf), slope


def of_rows(q, k, v, do, lse, delta, seen, keep, lift, scale, alibi, softcap):
    """P, dP, dS and dQ."""
    s, slope = scores(q, k, seen, scale, alibi, softcap)
    p = torch.exp(s - lse.masked_fill(lse == -torch.inf, 0)[..., None])
    dp = do @ v.mT * keep * lift * seen
    ds = p * (dp - delta[..., None]) * slope
    return p, dp, ds, ds @ k * scale


def of_keys(q, k, v, do, lse, delta, seen, keep, lift, scale, alibi, softcap):
    """dK and dV of each query head."""
    s, slope = scores(q, k, seen, scale, alibi, softcap)
    p = torch.exp(s - lse.masked_fill(lse == -torch.inf, 0)[..., None])
    dp = do @ v.mT * keep * lift * seen
    ds = p * (dp - delta[..., None]) * slope
    dk = ds.mT @ q * scale
    dv = (p * keep * lift).mT @ do
    return dk, dv


def plain_backward(
    q, k, v, do, *, scale, causal=False, window=None, softcap=None, alibi=None, mask=None, keep=None, dropout=0.0
):  # fmt: skip
    """Every intermediate, of [B, H, L, D] tensors.

    Args:
        keep: [B, H, M, N] bool, False where an entry of P is dropped.
        dropout: the probability of that.
    """
    dtype = q.dtype
    q, k, v, do = (tensor.float() for tensor in (q, k, v, do))
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, 1) if group > 1 else x for x in (k, v))
    keep, lift = (1.0, 1.0) if keep is None else (keep.float(), 1 / (1 - dropout))
    seen = visible(q, k, causal, window, mask)
    s, _ = scores(q, k, seen, scale, alibi, softcap)
    lse = s.logsumexp(-1)
    p = torch.exp(s - lse.masked_fill(lse == -torch.inf, 0)[..., None])
    o = p * keep * lift @ v
    held = {"LSE": lse}
    delta = (do * o).sum(-1)
    given = (q, k, v, do, lse, delta, seen, keep, lift, scale, alibi, softcap)
    p, dp, ds, dq = of_rows(*given)
    dk, dv = (x.unflatten(1, (-1, group)).sum(2) for x in of_keys(*given))
    held |= {"P": p, "dP": dp, "delta": delta, "dS": ds}
    ends = {"O": o, "dQ": dq, "dK": dk, "dV": dv}
    return held | {name: tensor.to(dtype) for name, tensor in ends.items()}


@functools.wraps(plain_backward)
def plain_gradients(*tensors, **options):
    found = plain_backward(*tensors, **options)
    return {name: found[name] for name in ("dQ", "dK", "dV")}
