"""The smallest kernels of kernels/cuda/rungs.cu, called as those of kernels/triton/rungs.py are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import gradprobe.kernels
from gradprobe import cuda

SOURCE = Path(gradprobe.kernels.__file__).parent / "cuda" / "rungs.cu"
_SCALARS = {torch.float32: "float", torch.float16: "__half", torch.bfloat16: "__nv_bfloat16"}


def add_one(out: Tensor, programs: int) -> None:
    """Adds 1, 2, ..., programs to each element of [H] float32, any stride, by atomic adds."""
    _kernels(out).add_one((out.shape[0], programs), 1, 0, out, out.stride(0))


def add_strided(out: Tensor, programs: int) -> None:
    """Adds 1, 2, ..., programs to each element of [M, N] float32, any strides, by atomic adds."""
    rows, cols = out.shape
    _kernels(out).add_strided(programs, rows, 0, out, *out.stride(), cols)


def dots(a: Tensor, b: Tensor, precision: str) -> Tensor:
    """[1, S, S] float32: a [S, K] times b [K, S], contiguous of one dtype, by float32 sums at any precision."""
    del precision  # it multiplies without tensor cores
    size, depth = a.shape
    out = torch.empty(1, size, size, dtype=torch.float32, device=a.device)
    _kernels(a).dots(size, size, 0, a, b, out, depth)
    return out


def one_tile_backward(
    q: Tensor, k: Tensor, v: Tensor, do: Tensor, *, scale: float
) -> dict[str, Tensor]:
    """dQ, dK and dV of softmax attention without a mask; tensors [B, H, L, D] float32, L up to 64."""
    given = [x.contiguous() for x in (q, k, v, do)]
    made = [torch.zeros_like(x) for x in given[:3]]
    batch, heads, length, dim = q.shape
    _kernels(q).one_head(batch * heads, length, 0, *given, *made, scale, length, dim)
    return dict(zip(("dQ", "dK", "dV"), made, strict=True))


def _kernels(tensor: Tensor) -> Any:
    return cuda.load(SOURCE, defines={"SCALAR": _SCALARS[tensor.dtype]})
