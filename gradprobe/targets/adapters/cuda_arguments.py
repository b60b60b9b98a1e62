"""What both adapters to CUDA kernels share: how they compile and launch."""

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
        o, lse = q.new_empty((*q.shape[:3], v.shape[3])), in_float32(q, *q.shape[:3])
        steps = (*strided(q, k, v), *self.extra_strides, *strided(o, lse))
        launch = (self.row_grid, (THREADS, THREADS), self.forward_bytes)
        self.module[kernel](*launch, q, k, v, *self.extras, o, lse, *steps, *self.options)
        return {"LSE": lse, "O": o}


def load(source: Path, q: Tensor, block_m: int, block_n: int, **dims: int) -> Any:
    """The kernels of a file, compiled for the dtype of q, tiles of these sizes, and head dims rounded up.

    Raises:
        ValueError: they compute in no such dtype, or with no such tiles.
    """
    if q.dtype not in _SCALARS:
        raise ValueError(f"q must be float32 or float16, got {q.dtype}")
    most = THREADS * THREADS
    for name, size in (("block_m", block_m), ("block_n", block_n)):
        if size % THREADS or not 0 < size <= most:
            raise ValueError(f"{name} must be a multiple of {THREADS} up to {most}, got {size}")
    tiles: dict[str, str | int] = {"BLOCK_M": block_m, "BLOCK_N": block_n, **dims}
    return cuda.load(source, defines={"SCALAR": _SCALARS[q.dtype], **tiles})


def strided(*tensors: Tensor) -> tuple[int, ...]:
    """The strides of several tensors, one after the other, as a kernel takes them."""
    return tuple(stride for tensor in tensors for stride in tensor.stride())


def strides(tensor: Tensor | None, axes: int) -> tuple[int, ...]:
    """The strides of a tensor; zeros for None."""
    return (0,) * axes if tensor is None else tensor.stride()


def rounded(head_dim: int) -> int:
    """The columns of a tile that holds a head dim."""
    return -(-head_dim // THREADS) * THREADS


def written(given: Tensor | None, like: Tensor) -> Tensor:
    """Where a gradient is written: what was given, else a new contiguous one."""
    return like.new_empty(like.shape) if given is None else given


def in_float32(like: Tensor, *sizes: int, zero: bool = False) -> Tensor:
    """A float32 tensor on the same device, without values or of 0."""
    make = torch.zeros if zero else torch.empty
    return make(sizes, dtype=torch.float32, device=like.device)
