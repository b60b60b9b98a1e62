"""dQ, dK and dV in torch, with delta from equal_values.cu or lanes_missing.cu, or dQ from shared_tiles.cu."""

from pathlib import Path

import torch

import gradprobe.cuda


def _loaded(name, **defines):
    return gradprobe.cuda.load(Path(__file__).with_name(f"{name}.cu"), defines=defines or None)


def _backward(q, k, v, do, scale, delta=None):
    p, dp = (q @ k.mT * scale).softmax(-1), do @ v.mT
    ds = p * (dp - ((p * dp).sum(-1) if delta is None else delta)[..., None])
    found = {"dQ": ds @ k * scale, "dK": ds.mT @ q * scale, "dV": p.mT @ do}
    return found | ({} if delta is None else {"delta": delta}), ds


def _with_delta(name, kernel, threads):
    def backward(q, k, v, do, *, scale, o):
        o, do, delta = o.contiguous(), do.contiguous(), torch.empty(q.shape[:-1])
        if threads == 64:  # two warps, a row each
            sizes, grid = (delta.numel(), q.shape[-1]), -(-delta.numel() // 2)
        else:
            sizes, grid = (q.shape[-1],), delta.numel()
        _loaded(name)[kernel](grid, threads, 0, o, do, delta, *sizes)
        return _backward(q, k, v, do, scale, delta)[0]

    return backward


equal_values = _with_delta("equal_values", "delta_kernel", 64)
lanes_missing = _with_delta("lanes_missing", "delta_kernel", 24)
lanes_right = _with_delta("lanes_missing", "right_kernel", 16)


def _with_dq(**defines):
    def backward(q, k, v, do, *, scale):
        kernels, (found, ds) = _loaded("shared_tiles", **defines), _backward(q, k, v, do, scale)
        dq, k = torch.zeros(q.shape), k.contiguous()
        (batch, heads, rows, dim), keys = q.shape, k.shape[2]
        grid, sizes = (-(-rows // 8), -(-dim // 8)), (rows, keys, dim, scale)
        for at in ((b, h) for b in range(batch) for h in range(heads)):
            kernels.dq_kernel(grid, (8, 8), 0, ds[at].contiguous(), k[at], dq[at], *sizes)
        return found | {"dQ": dq}

    return backward


key_of_the_thread = _with_dq(KEY="threadIdx.y", FACTOR="1.0f")
factor = _with_dq(KEY="n", FACTOR="1.5f")
