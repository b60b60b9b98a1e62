"""dQ in CUDA C++, to be checked with or without a GPU: `gradprobe check examples/dq.py:dq --head-dim 32`."""

from pathlib import Path

import torch

import gradprobe.cuda

kernels = gradprobe.cuda.load(Path(__file__).with_name("dq.cu"))


def dq(q, k, v, do, *, scale, o, lse):
    """[B, H, L, D] in, up to D = 32; dQ and delta out."""
    q, k, v, do = (tensor.contiguous() for tensor in (q, k, v, do))
    dq, delta = torch.empty_like(q), (do * o).sum(-1)
    batch, heads, n_ctx, head_dim = q.shape
    grid = (-(-n_ctx // 16), batch * heads)
    kernels.dq_kernel(grid, (16, 16), 0, q, k, v, do, lse.contiguous(), delta, dq, scale, n_ctx, head_dim)
    return {"dQ": dq, "delta": delta}
