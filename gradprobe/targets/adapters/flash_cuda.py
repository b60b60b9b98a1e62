"""Softmax attention by the kernels of kernels/cuda/flash.cu."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

import gradprobe.kernels

from . import narrowed
from .cuda_arguments import (
    THREADS,
    CudaPlan,
    in_float32,
    load,
    rounded,
    strided,
    strides,
    written,
)

SOURCE = Path(gradprobe.kernels.__file__).parent / "cuda" / "flash.cu"


def flash_cuda_backward(
    q: Tensor, k: Tensor, v: Tensor, do: Tensor, *, scale: float, causal: bool = False,
    window: tuple[int, int] | None = None, align: str = "bottom-right", softcap: float | None = None,
    seqlens: Tensor | None = None, o: Tensor | None = None, lse: Tensor | None = None, block_m: int = 32,
    block_n: int = 32, dq: Tensor | None = None, dk: Tensor | None = None, dv: Tensor | None = None,
) -> dict[str, Tensor]:  # fmt: skip
    """The gradients of softmax attention, and the intermediates that the kernels keep on chip.

    Args:
        q, k, v, do: [B, H, M, D], [B, Hkv, N, D], [B, Hkv, N, Dv] and [B, H, M, Dv], float32 or float16, any strides.
        window: (left, right) keys around the diagonal, both included; -1 for no limit.
        align: where the diagonal lies: "bottom-right", at key i + N - M of row i, or "top-left", at key i.
        seqlens: [B] integers, the live length of each batch (right padding), needs M = N. Read on the host too.
        o, lse: [B, H, M, Dv] and [B, H, M] float32, natural log, from a forward; computed here when None.
        block_m, block_n: tile sizes, multiples of 16 up to 256.
        dq, dk, dv: where the gradient is written, any strides but 0; made here when None.

    Returns:
        O and LSE where they were computed here; dQ, dK and dV; in float32 delta [B, H, M], P, dP and dS [B, H, M, N], 0
        where a key is not seen.

    Raises:
        ValueError: the kernels compute in no such dtype, or with no such tiles.
    """
    (batch, heads, rows, dim), (_, kv_heads, keys, dim_v) = q.shape, v.shape
    left, right = (rows + keys if side < 0 else side for side in window or (-1, -1))
    sides = (left, 0 if causal else right, int(align == "bottom-right"))
    sizes = (heads, heads // kv_heads, rows, keys, dim, dim_v)
    block_d, block_dv = rounded(dim), rounded(dim_v)
    inputs = (block_m + block_n) * (block_d + 1) + block_n * (block_dv + 1)
    scores = block_m * (block_n + 1)
    lengths = None if seqlens is None else seqlens.to(torch.int32)
    plan = CudaPlan(
        module=load(SOURCE, q, block_m, block_n, BLOCK_D=block_d, BLOCK_DV=block_dv),
        row_grid=batch * heads * -(-rows // block_m),
        key_grid=batch * kv_heads * -(-keys // block_n),
        # The structs ForwardTiles and BackwardTiles of flash.cu.
        forward_bytes=4 * (inputs + scores + 3 * block_m),
        backward_bytes=4 * (inputs + block_m * (block_dv + 1) + 2 * scores + 2 * block_m),
        extras=(lengths,),
        extra_strides=strides(lengths, 1),
        options=(scale, softcap or 0.0, *sizes, *sides),
    )
    own = plan.forward("flash_forward", q, k, v) if o is None or lse is None else {}
    o, lse = own["O"] if o is None else o, own["LSE"] if lse is None else lse
    gradients = tuple(map(written, (dq, dk, dv), (q, k, v)))
    return own | _backward(plan, (q, k, v, do), o, lse, gradients, block_m)


# Forward and backward with everything exposed.
flash_cuda = narrowed(flash_cuda_backward, ("o", "lse"))


def _backward(
    plan: CudaPlan,
    inputs: tuple[Tensor, ...],
    o: Tensor,
    lse: Tensor,
    gradients: tuple[Tensor, ...],
    row_threads: int,
) -> dict[str, Tensor]:
    (q, k, v, do), (dq, dk, dv) = inputs, gradients
    delta = in_float32(q, *q.shape[:3])
    # Tiles that hold no visible key are not visited.
    p, dp, ds = (in_float32(q, *q.shape[:3], k.shape[2], zero=True) for _ in range(3))
    steps = (*strided(o, do), *plan.extra_strides, *strided(delta))
    own = (o, do, *plan.extras, delta, *steps, q.shape[1], q.shape[2], v.shape[3])
    # A block in which each thread has one row.
    plan.module.flash_preprocess(plan.row_grid, row_threads, 0, *own)
    taken = (*inputs, *plan.extras, lse, delta)
    steps = (*strided(*inputs), *plan.extra_strides, *strided(lse, delta))
    for kernel, grid, made in (
        ("flash_dq", plan.row_grid, (dq, p, dp, ds)),
        ("flash_dkdv", plan.key_grid, (dk, dv)),
    ):
        launch = (grid, (THREADS, THREADS), plan.backward_bytes)
        plan.module[kernel](*launch, *taken, *made, *steps, *strided(*made), *plan.options)
    return {"P": p, "dP": dp, "delta": delta, "dS": ds, "dQ": dq, "dK": dk, "dV": dv}
