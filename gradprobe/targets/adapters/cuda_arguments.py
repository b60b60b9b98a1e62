"""What both adapters to CUDA kernels share: the checks of their arguments, and how they launch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gradprobe import cuda

THREADS = 16
"""A block has THREADS x THREADS threads; the sizes of tiles are multiples of it."""

_SCALARS = {torch.float32: "float", torch.float16: "__half"}


@dataclass(frozen=True)
class CudaPlan:
    """What the launches of one call share."""

    module: Any
    row_grid: int
    """Blocks, one for each tile of query rows."""
    key_grid: int
    forward_bytes: int
    """Of shared memory."""
    backward_bytes: int
    extras: tuple[Tensor | None, ...]
    """The inputs that stand behind q, k and v in every kernel that looks at scores."""
    extra_strides: tuple[int, ...]
    options: tuple[float, ...]
    """The last arguments of these kernels."""

    def forward(self, kernel: str, q: Tensor, k: Tensor, v: Tensor) -> dict[str, Tensor]:
        """O and LSE."""
        o = torch.empty((*q.shape[:3], v.shape[3]), dtype=q.dtype, device=q.device)
        lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
        steps = (*strided(q, k, v), *self.extra_strides, *strided(o, lse))
        launch = (self.row_grid, (THREADS, THREADS), self.forward_bytes)
        self.module[kernel](*launch, q, k, v, *self.extras, o, lse, *steps, *self.options)
        return {"LSE": lse, "O": o}


def load(source: Path, q: Tensor, block_m: int, block_n: int, **dims: int) -> Any:
    """The kernels of a file, compiled for the dtype of q, tiles of these sizes, and head dims rounded up."""
    defines: dict[str, str | int] = {
        "SCALAR": _SCALARS[q.dtype],
        "BLOCK_M": block_m,
        "BLOCK_N": block_n,
        **dims,
    }
    return cuda.load(source, defines=defines)


def strided(*tensors: Tensor) -> tuple[int, ...]:
    """The strides of several tensors, one after the other, as a kernel takes them."""
    return tuple(stride for tensor in tensors for stride in tensor.stride())


def strides(tensor: Tensor | None, axes: int) -> tuple[int, ...]:
    """The strides of a tensor; zeros for None."""
    return (0,) * axes if tensor is None else tensor.stride()


def check_dtype(q: Tensor) -> None:
    """Raises a ValueError where the kernels do not compute in the dtype."""
    if q.dtype not in _SCALARS:
        raise ValueError(f"q must be float32 or float16, got {q.dtype}")


def rounded(head_dim: int) -> int:
    """The columns of a tile that holds a head dim."""
    return -(-head_dim // THREADS) * THREADS


def check_tiles(block_m: int, block_n: int) -> None:
    """Raises a ValueError for a size that no tile has."""
    for name, size in (("block_m", block_m), ("block_n", block_n)):
        if size % THREADS or not 0 < size <= THREADS * THREADS:
            raise ValueError(
                f"{name} must be a multiple of {THREADS} up to {THREADS * THREADS}, got {size}"
            )


def check_seqlens(seqlens: Tensor | None, batch: int, length: int) -> None:
    """Raises a ValueError for lengths of another number, dtype or range."""
    if seqlens is None:
        return
    if seqlens.shape != (batch,) or seqlens.is_floating_point():
        raise ValueError(
            f"seqlens must be [B] = ({batch},) integers, got shape {tuple(seqlens.shape)} {seqlens.dtype}"
        )
    if any(not 0 <= each <= length for each in seqlens.tolist()):
        raise ValueError(f"seqlens must lie in 0 to {length}, got {seqlens.tolist()}")


def written(name: str, given: Tensor | None, like: Tensor) -> Tensor:
    """Where a gradient is written.

    Raises:
        ValueError: the given tensor has another shape or dtype, or elements that share memory.
    """
    if given is None:
        return torch.empty(like.shape, dtype=like.dtype, device=like.device)
    if given.shape != like.shape or given.dtype != like.dtype:
        own = f"{tuple(like.shape)} {like.dtype}"
        raise ValueError(
            f"{name} must match {name[1:]}, {own}, got {tuple(given.shape)} {given.dtype}"
        )
    if any(
        size > 1 and step == 0 for size, step in zip(given.shape, given.stride(), strict=True)
    ):
        raise ValueError(
            f"{name} must hold each element apart, got stride 0 among {given.stride()} of {tuple(given.shape)}"
        )
    return given
