"""Softmax backwards in torch: one that is right, and right ones that round once more somewhere."""

import torch
from torch import Tensor


def cut(tensor: Tensor, bits: int) -> Tensor:
    """float32 without its last bits, as TF32 is without 13."""
    return (tensor.contiguous().view(torch.int32) & -(1 << bits)).view(torch.float32)


def backward(q, k, v, do, *, scale, ds_twice=False, bits_of_k=0):
    """O, dQ, dK and dV in q's dtype; P and dS are rounded to it before their products.

    Args:
        ds_twice: dS is rounded before it is scaled, and after.
        bits_of_k: how many bits k loses before the scores.
    """

    def rounded(tensor: Tensor) -> Tensor:
        return tensor.to(q.dtype).float()

    wide_q, wide_k, wide_v, wide_do = (tensor.float() for tensor in (q, k, v, do))
    s = wide_q @ (cut(wide_k, bits_of_k) if bits_of_k else wide_k).mT * scale
    e = torch.exp(s - s.amax(-1, keepdim=True))
    p = e / e.sum(-1, keepdim=True)
    o = (rounded(p) @ wide_v).to(q.dtype)
    delta = (wide_do * o.float()).sum(-1, keepdim=True)
    ds = rounded(p * (wide_do @ wide_v.mT - delta))
    inner, outer = (rounded(ds * scale), 1.0) if ds_twice else (ds, scale)
    dq = inner @ wide_k
    results = {"O": o, "dQ": dq * outer}
    results |= {"dK": inner.mT @ wide_q * outer, "dV": rounded(p).mT @ wide_do}
    return {name: value.to(q.dtype) for name, value in results.items()}


def right(q, k, v, do, *, scale):
    return backward(q, k, v, do, scale=scale)


def ds_twice(q, k, v, do, *, scale):
    return backward(q, k, v, do, scale=scale, ds_twice=True)


def dk_in_16_bits(q, k, v, do, *, scale):
    results = right(q, k, v, do, scale=scale)
    dk, wide_q = torch.zeros_like(k), q.float()
    p = torch.softmax(wide_q @ k.float().mT * scale, -1)
    delta = (do.float() * results["O"].float()).sum(-1, keepdim=True)
    ds = (p * (do.float() @ v.float().mT - delta)).to(q.dtype).float()
    for at in range(0, q.shape[-2], 16):
        rows = slice(at, at + 16)
        dk = (dk.float() + ds[..., rows, :].mT @ wide_q[..., rows, :] * scale).to(k.dtype)
    return {**results, "dK": dk}


def k_without_3_bits(q, k, v, do, *, scale):
    return backward(q, k, v, do, scale=scale, bits_of_k=3)


def k_as_in_tf32(q, k, v, do, *, scale):
    return backward(q, k, v, do, scale=scale, bits_of_k=13)
