"""A right backward whose products of float32 are coarser than IEEE's."""

import torch


def _cut(tensor):
    """float32 to TF32, to nearest."""
    bits = tensor.contiguous().view(torch.int32)
    return ((bits + 0x1000) & ~0x1FFF).view(torch.float32)


def _tf32(a, b):
    return _cut(a) @ _cut(b)


def tf32(q, k, v, do):
    scale = q.shape[-1] ** -0.5
    p = torch.softmax(_tf32(q, k.mT) * scale, -1)
    ds = p * (_tf32(do, v.mT) - (do * _tf32(p, v)).sum(-1, keepdim=True))
    return {"dQ": _tf32(ds, k) * scale, "dK": _tf32(ds.mT, q) * scale, "dV": _tf32(p.mT, do)}
