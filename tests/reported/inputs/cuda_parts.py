"""dQ, dK and dV in torch, with delta from equal_values.cu or lanes_missing.cu."""

from pathlib import Path

import torch

import gradprobe.cuda


def _backward(q, k, v, do, scale, delta):
    p, dp = (q @ k.mT * scale).softmax(-1), do @ v.mT
    ds = p * (dp - delta[..., None])
    return {"dQ": ds @ k * scale, "dK": ds.mT @ q * scale, "dV": p.mT @ do, "delta": delta}


def _with_delta(name, kernel, threads):
    def backward(q, k, v, do, *, scale, o):
        o, do, delta = o.contiguous(), do.contiguous(), torch.empty(q.shape[:-1])
        if threads == 64:  # two warps, a row each
            sizes, grid = (delta.numel(), q.shape[-1]), -(-delta.numel() // 2)
        else:
            sizes, grid = (q.shape[-1],), delta.numel()
        kernels = gradprobe.cuda.load(Path(__file__).with_name(f"{name}.cu"))
        kernels[kernel](grid, threads, 0, o, do, delta, *sizes)
        return _backward(q, k, v, do, scale, delta)

    return backward


equal_values = _with_delta("equal_values", "delta_kernel", 64)
lanes_missing = _with_delta("lanes_missing", "delta_kernel", 24)
lanes_right = _with_delta("lanes_missing", "right_kernel", 16)
