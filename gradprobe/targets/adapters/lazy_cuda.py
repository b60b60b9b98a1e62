"""Lazy attention by the kernels of kernels/cuda/lazy.cu."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import gradprobe.kernels

from . import cuda_arguments
from .cuda_arguments import THREADS, strides, written

SOURCE = Path(gradprobe.kernels.__file__).parent / "cuda" / "lazy.cu"


def lazy_cuda(
    q: Tensor, k: Tensor, v: Tensor, do: Tensor, *, tau: Tensor, scale: float, bias: Tensor | None = None,
    seqlens: Tensor | None = None, block_m: int = 32, block_n: int = 32, dq: Tensor | None = None,
    dk: Tensor | None = None, dv: Tensor | None = None,
) -> dict[str, Tensor]:  # fmt: skip
    """Forward and backward with everything exposed: O and LSE beside what `lazy_cuda_backward` gives.

    Args:
        q, k, v: [B, H, L, D], float32 or float16, any strides.
        do: [B, H, L, D], the gradient of O, any strides, 0 included.
        tau: [H], either sign.
        scale: of the scores.
        bias: [H, W] by distance i - j, or None.
        seqlens: [B] integers, the live length of each batch (right padding), or None. Read on the host too.
        block_m, block_n: tile sizes, multiples of 16 up to 256.
        dq, dk, dv: where the gradient is written, like q, any strides but 0; made here when None.

    Raises:
        ValueError: where shapes, dtypes or lengths do not agree.
    """
    plan = _plan(q, k, v, do, tau, scale, bias, seqlens, block_m, block_n)
    o, lse = _forward(plan, q, k, v)
    return {"LSE": lse, "O": o} | _backward(plan, q, k, v, do, lse, dq, dk, dv)


def lazy_cuda_backward(
    q: Tensor, k: Tensor, v: Tensor, do: Tensor, *, tau: Tensor, scale: float, bias: Tensor | None = None,
    seqlens: Tensor | None = None, lse: Tensor | None = None, block_m: int = 32, block_n: int = 32,
    dq: Tensor | None = None, dk: Tensor | None = None, dv: Tensor | None = None,
) -> dict[str, Tensor]:  # fmt: skip
    """The gradients of lazy attention, and the intermediates that the kernels keep on chip.

    Args:
        lse: [B, H, L] float32, natural log, from a forward; computed here when None.
        The others are those of `lazy_cuda`.

    Returns:
        A dict of dQ, dK, dV [B, H, L, D] in q's dtype; delta [B, H, L], P, dP and dS [B, H, L, L] float32; dTau [H],
        and dBias [H, W] where there is a bias, in the dtypes of tau and bias. Rows at or beyond a batch's length are 0.

    Raises:
        ValueError: where shapes, dtypes or lengths do not agree.
    """
    plan = _plan(q, k, v, do, tau, scale, bias, seqlens, block_m, block_n, lse)
    own = _forward(plan, q, k, v)[1] if lse is None else lse
    return _backward(plan, q, k, v, do, own, dq, dk, dv)


@dataclass(frozen=True)
class _Plan:
    """What the launches share once everything is found to agree."""

    module: Any
    n_row_tiles: int
    n_key_tiles: int
    forward_bytes: int
    backward_bytes: int
    extras: tuple[Tensor | None, Tensor, Tensor | None]
    """bias and tau as float32, and seqlens."""
    extra_strides: tuple[int, ...]
    results: tuple[torch.dtype, torch.dtype]
    """The dtypes of dBias and dTau."""
    options: tuple[float, ...]
    """The last arguments of every kernel that looks at scores."""
    window: int


def _plan(
    q: Tensor, k: Tensor, v: Tensor, do: Tensor, tau: Tensor, scale: float, bias: Tensor | None,
    seqlens: Tensor | None, block_m: int, block_n: int, lse: Tensor | None = None,
) -> _Plan:  # fmt: skip
    _check(q, {"k": k, "v": v, "do": do}, tau, bias, lse)
    cuda_arguments.check_tiles(block_m, block_n)
    batch, heads, length, dim = q.shape
    cuda_arguments.check_seqlens(seqlens, batch, length)
    block_d, window = cuda_arguments.rounded(dim), 0 if bias is None else bias.shape[1]
    inputs, scores = (block_m + 2 * block_n) * (block_d + 1), block_m * (block_n + 1)
    extras = (None if bias is None else bias.float(), tau.float(), cuda_arguments.live_lengths(seqlens))
    return _Plan(
        module=cuda_arguments.load(SOURCE, q, block_m, block_n, BLOCK_D=block_d),
        n_row_tiles=-(-length // block_m),
        n_key_tiles=-(-length // block_n),
        # The structs ForwardTiles and BackwardTiles of lazy.cu.
        forward_bytes=4 * (inputs + scores + 3 * block_m),
        backward_bytes=4 * (inputs + block_m * (block_d + 1) + 2 * scores + THREADS * THREADS + 2 * block_m),
        extras=extras,
        extra_strides=(*strides(extras[0], 2), *strides(extras[1], 1), *strides(extras[2], 1)),
        results=(torch.float32 if bias is None else bias.dtype, tau.dtype),
        options=(scale, heads, length, dim, window),
        window=window,
    )


def _check(q: Tensor, others: dict[str, Tensor], tau: Tensor, bias: Tensor | None, lse: Tensor | None) -> None:
    if q.dim() != 4:
        raise ValueError(f"q must be [B, H, L, D], got shape {tuple(q.shape)}")
    cuda_arguments.check_dtype(q)
    for name, tensor in others.items():
        if tensor.shape != q.shape or tensor.dtype != q.dtype:
            raise ValueError(
                f"{name} must match q, {tuple(q.shape)} {q.dtype}, got {tuple(tensor.shape)} {tensor.dtype}"
            )
    if tau.shape != q.shape[1:2]:
        raise ValueError(f"tau must be [H] = ({q.shape[1]},), got shape {tuple(tau.shape)}")
    if bias is not None and (bias.dim() != 2 or bias.shape[0] != q.shape[1]):
        raise ValueError(f"bias must be [H, W] with H = {q.shape[1]}, got shape {tuple(bias.shape)}")
    if lse is not None and (lse.shape != q.shape[:3] or lse.dtype != torch.float32):
        shape = tuple(q.shape[:3])
        raise ValueError(f"lse must be [B, H, L] = {shape} float32, got {tuple(lse.shape)} {lse.dtype}")


def _forward(plan: _Plan, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    o = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    plan.module.lazy_forward(
        q.shape[0] * q.shape[1] * plan.n_row_tiles, (THREADS, THREADS), plan.forward_bytes,
        q, k, v, *plan.extras, o, lse,
        *q.stride(), *k.stride(), *v.stride(), *plan.extra_strides, *o.stride(), *lse.stride(), *plan.options,
    )  # fmt: skip
    return o, lse


def _backward(
    plan: _Plan, q: Tensor, k: Tensor, v: Tensor, do: Tensor, lse: Tensor, dq: Tensor | None, dk: Tensor | None,
    dv: Tensor | None,
) -> dict[str, Tensor]:  # fmt: skip
    dq, dk, dv = written("dq", dq, q), written("dk", dk, k), written("dv", dv, v)
    batch, heads, length, _ = q.shape
    row_grid, key_grid = batch * heads * plan.n_row_tiles, batch * heads * plan.n_key_tiles
    delta = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    # Tiles above the diagonal are not visited, and each part of dBias is added to from 0.
    full = (batch, heads, length, length)
    p, dp, ds = (torch.zeros(full, dtype=torch.float32, device=q.device) for _ in range(3))
    dbias_parts = None
    if plan.extras[0] is not None:
        dbias_parts = torch.zeros((row_grid, plan.window), dtype=torch.float32, device=q.device)
    dtau_parts = torch.empty((row_grid, 1), dtype=torch.float32, device=q.device)

    inputs = (q, k, v, do, *plan.extras, lse)
    input_strides = (
        *q.stride(), *k.stride(), *v.stride(), *do.stride(), *plan.extra_strides, *lse.stride(), *delta.stride(),
    )  # fmt: skip
    threads = (THREADS, THREADS)
    plan.module.lazy_preprocess(
        row_grid, threads, plan.backward_bytes, *inputs, delta, *input_strides, *plan.options
    )  # fmt: skip
    plan.module.lazy_dq(
        row_grid, threads, plan.backward_bytes,
        *inputs, delta, dq, dbias_parts, dtau_parts, p, dp, ds,
        *input_strides, *dq.stride(), *p.stride(), *dp.stride(), *ds.stride(), *plan.options,
    )  # fmt: skip
    plan.module.lazy_dkdv(
        key_grid, threads, plan.backward_bytes,
        *inputs, delta, dk, dv,
        *input_strides, *dk.stride(), *dv.stride(), *plan.options,
    )  # fmt: skip
    dtau = _added(plan, dtau_parts, batch, heads).reshape(heads).to(plan.results[1])
    results = {"P": p, "dP": dp, "delta": delta, "dS": ds, "dQ": dq, "dK": dk, "dV": dv, "dTau": dtau}
    if dbias_parts is not None:
        results["dBias"] = _added(plan, dbias_parts, batch, heads).to(plan.results[0])
    return results


def _added(plan: _Plan, parts: Tensor, batch: int, heads: int) -> Tensor:
    """[H, width] from [B * H * tiles, width]."""
    threads, width = THREADS * THREADS, parts.shape[1]
    out = torch.empty((heads, width), dtype=torch.float32, device=parts.device)
    plan.module.lazy_add_parts(
        -(-heads * width // threads), threads, 0, parts, out, batch, heads, plan.n_row_tiles, width
    )  # fmt: skip
    return out
