"""Lazy attention by the kernels of kernels/cuda/lazy.cu."""

from __future__ import annotations

from pathlib import Path

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

SOURCE = Path(gradprobe.kernels.__file__).parent / "cuda" / "lazy.cu"


def lazy_cuda_backward(
    q: Tensor, k: Tensor, v: Tensor, do: Tensor, *, tau: Tensor, scale: float, bias: Tensor | None = None,
    seqlens: Tensor | None = None, lse: Tensor | None = None, block_m: int = 32, block_n: int = 32,
    dq: Tensor | None = None, dk: Tensor | None = None, dv: Tensor | None = None,
) -> dict[str, Tensor]:  # fmt: skip
    """The gradients of lazy attention, and the intermediates that the kernels keep on chip.

    Args:
        q, k, v, do: [B, H, L, D], float32 or float16, any strides.
        tau: [H], either sign.
        bias: [H, W] by distance i - j, or None.
        seqlens: [B] integers, the live length of each batch (right padding), or None. Read on the host too.
        lse: [B, H, L] float32, natural log, from a forward; computed here when None.
        block_m, block_n: tile sizes, multiples of 16 up to 256.
        dq, dk, dv: where the gradient is written, like q, any strides but 0; made here when None.

    Returns:
        O and LSE where they were computed here; dQ, dK and dV; in float32 delta [B, H, L], P, dP and dS [B, H, L, L];
        dTau [H], and dBias [H, W] where there is a bias. Rows at or beyond a batch's length are 0.

    Raises:
        ValueError: the kernels compute in no such dtype, or with no such tiles.
    """
    batch, heads, length, dim = q.shape
    block_d, tiles = rounded(dim), (block_m + 2 * block_n, block_m)
    inputs, rows = (size * (block_d + 1) for size in tiles)
    scores = block_m * (block_n + 1)
    wide, slopes = None if bias is None else bias.float(), tau.float()
    lengths = None if seqlens is None else seqlens.int()
    plan = CudaPlan(
        module=load(SOURCE, q, block_m, block_n, BLOCK_D=block_d),
        row_grid=batch * heads * -(-length // block_m),
        key_grid=batch * heads * -(-length // block_n),
        # The structs ForwardTiles and BackwardTiles of lazy.cu.
        forward_bytes=4 * (inputs + scores + 3 * block_m),
        backward_bytes=4 * (inputs + rows + 2 * scores + THREADS * THREADS + 2 * block_m),
        extras=(wide, slopes, lengths),
        extra_strides=(*strides(wide, 2), *strides(slopes, 1), *strides(lengths, 1)),
        options=(scale, heads, length, dim, 0 if bias is None else bias.shape[1]),
    )
    own = plan.forward("lazy_forward", q, k, v) if lse is None else {}
    gradients = tuple(map(written, (dq, dk, dv), (q, k, v)))
    found = own | _backward(plan, (q, k, v, do), own["LSE"] if lse is None else lse, gradients)
    found["dTau"] = found["dTau"].to(tau.dtype)
    return found if bias is None else found | {"dBias": found["dBias"].to(bias.dtype)}


# Forward and backward with everything exposed.
lazy_cuda = narrowed(lazy_cuda_backward, ("lse",))


def _backward(
    plan: CudaPlan, inputs: tuple[Tensor, ...], lse: Tensor, gradients: tuple[Tensor, ...]
) -> dict[str, Tensor]:
    (q, *_), (dq, dk, dv), bias = inputs, gradients, plan.extras[0]
    delta = in_float32(q, *q.shape[:3])
    # Tiles above the diagonal are not visited, and each part of dBias is added to from 0.
    p, dp, ds = (in_float32(q, *q.shape[:3], q.shape[2], zero=True) for _ in range(3))
    dbias_parts = None
    if bias is not None:
        dbias_parts = in_float32(q, plan.row_grid, bias.shape[1], zero=True)
    dtau_parts = in_float32(q, plan.row_grid, 1)

    taken = (*inputs, *plan.extras, lse, delta)
    steps = (*strided(*inputs), *plan.extra_strides, *strided(lse, delta))
    block = ((THREADS, THREADS), plan.backward_bytes)
    by_row, by_key = (plan.row_grid, *block), (plan.key_grid, *block)
    plan.module.lazy_preprocess(*by_row, *taken, *steps, *plan.options)
    made = (dq, dbias_parts, dtau_parts, p, dp, ds)
    plan.module.lazy_dq(*by_row, *taken, *made, *steps, *strided(dq, p, dp, ds), *plan.options)
    plan.module.lazy_dkdv(*by_key, *taken, dk, dv, *steps, *strided(dk, dv), *plan.options)
    results = {"P": p, "dP": dp, "delta": delta, "dS": ds, "dQ": dq, "dK": dk, "dV": dv}
    results["dTau"] = _added(plan, dtau_parts, q).reshape(-1)
    return results if dbias_parts is None else results | {"dBias": _added(plan, dbias_parts, q)}


def _added(plan: CudaPlan, parts: Tensor, q: Tensor) -> Tensor:
    """Adds [B * H * tiles, width] up to [H, width]."""
    (batch, heads, *_), threads, width = q.shape, THREADS * THREADS, parts.shape[1]
    out = in_float32(q, heads, width)
    sizes = (batch, heads, plan.row_grid // (batch * heads), width)
    plan.module.lazy_add_parts(-(-heads * width // threads), threads, 0, parts, out, *sizes)
    return out
