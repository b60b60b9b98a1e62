"""Right backwards whose products of float32 are coarser than IEEE's."""

import torch


def _cut(tensor):
    """float32 to TF32, to nearest."""
    bits = tensor.contiguous().view(torch.int32)
    return ((bits + 0x1000) & ~0x1FFF).view(torch.float32)


def _tf32(a, b):
    return _cut(a) @ _cut(b)


def _bf16x3(a, b):
    """The three largest of the products of two parts each."""
    parts = []
    for tensor in (a, b):
        high = tensor.bfloat16().float()
        parts.append((high, (tensor - high).bfloat16().float()))
    (a_high, a_low), (b_high, b_low) = parts
    return a_high @ b_low + a_low @ b_high + a_high @ b_high


def _backward(dot, q, k, v, do):
    scale = q.shape[-1] ** -0.5
    p = torch.softmax(dot(q, k.mT) * scale, -1)
    ds = p * (dot(do, v.mT) - (do * dot(p, v)).sum(-1, keepdim=True))
    return {"dQ": dot(ds, k) * scale, "dK": dot(ds.mT, q) * scale, "dV": dot(p.mT, do)}


def tf32(q, k, v, do):
    return _backward(_tf32, q, k, v, do)


def bf16x3(q, k, v, do):
    return _backward(_bf16x3, q, k, v, do)
