"""What several adapters share: fewer parameters, masks of visible keys, and the arguments of CUDA kernels."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gradprobe import cuda


def narrowed(
    function: Callable[..., Any],
    lacking: tuple[str, ...],
    around: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Callable[..., Any]:
    """The function without the parameters named in `lacking`, called within `around()`."""
    signature = inspect.signature(function)
    kept = [parameter for parameter in signature.parameters.values() if parameter.name not in lacking]

    @functools.wraps(function)
    def narrow(*args: Any, **kwargs: Any) -> Any:
        with around():
            return function(*args, **kwargs)

    vars(narrow)["__signature__"] = signature.replace(parameters=kept)
    return narrow


@dataclass(frozen=True)
class Visibility:
    """The options that hide keys from rows, of one problem with M query rows and N keys."""

    rows: int
    keys: int
    device: torch.device
    causal: bool = False
    align: str = "bottom-right"
    window: tuple[int, int] | None = None
    mask: Tensor | None = None
    seqlens: Tensor | None = None
    cu_seqlens_q: Tensor | None = None
    cu_seqlens_k: Tensor | None = None

    def options(self) -> tuple[object, ...]:
        """Which options hide keys, without their values: two problems with equal options run the same code."""
        given = (self.mask, self.seqlens, self.cu_seqlens_q)
        return (self.causal, self.align, self.window, *(option is not None for option in given))

    @property
    def is_everything(self) -> bool:
        """Whether every row sees every key."""
        given = (self.window, self.mask, self.seqlens, self.cu_seqlens_q)
        return not self.causal and all(option is None for option in given)

    @property
    def is_causal_from_top_left(self) -> bool:
        """Whether a causal mask whose diagonal begins at row 0 and key 0 says it all."""
        begins_there = self.align == "top-left" or self.rows == self.keys
        return self.causal and begins_there and replace(self, causal=False).is_everything

    def diagonal(self) -> Tensor:
        """[M] the key, counted inside its sequence, that the diagonal meets in each row."""
        i = torch.arange(self.rows, device=self.device)
        if self.cu_seqlens_q is None or self.cu_seqlens_k is None:
            return i + (self.keys - self.rows if self.align == "bottom-right" else 0)
        sequence = self.sequence_of_rows()
        local = i - self.cu_seqlens_q[sequence]
        more = self.cu_seqlens_k.diff() - self.cu_seqlens_q.diff()
        return local + more[sequence] if self.align == "bottom-right" else local

    def places(self) -> Tensor:
        """[N] the index of each key inside its sequence."""
        j = torch.arange(self.keys, device=self.device)
        return j if self.cu_seqlens_k is None else j - self.cu_seqlens_k[self.sequence_of_keys()]

    def sequence_of_rows(self) -> Tensor:
        """[M] the packed sequence that a row belongs to."""
        return _sequence(self.cu_seqlens_q, self.rows, self.device)

    def sequence_of_keys(self) -> Tensor:
        """[N] the packed sequence that a key belongs to."""
        return _sequence(self.cu_seqlens_k, self.keys, self.device)

    def distance(self) -> Tensor:
        """[M, N] how far each key lies before the diagonal of each row. It means nothing between two sequences."""
        return self.diagonal()[:, None] - self.places()

    def seen(self) -> Tensor | None:
        """bool, four axes that broadcast to [B, H, M, N], True where a row may see a key; None where all do."""
        parts = []
        if self.causal:
            parts.append((self.distance() >= 0)[None, None])
        if self.window is not None:
            left, right = self.window
            distance = self.distance()[None, None]
            parts.append(distance <= left if left >= 0 else torch.ones_like(distance, dtype=torch.bool))
            parts.append(distance >= -right if right >= 0 else torch.ones_like(distance, dtype=torch.bool))
        if self.mask is not None:
            parts.append(self.mask)
        if self.seqlens is not None:
            ends = self.seqlens.view(-1, 1, 1, 1)
            parts.append(torch.arange(self.rows, device=self.device)[:, None] < ends)
            parts.append(torch.arange(self.keys, device=self.device) < ends)
        if self.cu_seqlens_q is not None:
            parts.append((self.sequence_of_rows()[:, None] == self.sequence_of_keys())[None, None])
        return functools.reduce(torch.logical_and, parts) if parts else None


def _sequence(ends: Tensor | None, count: int, device: torch.device) -> Tensor:
    """[count] the sequence of each index: the last that begins at or before it. An empty one holds no index."""
    index = torch.arange(count, device=device)
    if ends is None:
        return torch.zeros_like(index)
    return torch.searchsorted(ends[1:].contiguous().long(), index, right=True)


THREADS = 16
"""A block has THREADS x THREADS threads; the sizes of tiles are multiples of it."""

_SCALARS = {torch.float32: "float", torch.float16: "__half"}


def load(source: Path, q: Tensor, block_m: int, block_n: int, **dims: int) -> Any:
    """The kernels of a file, compiled for the dtype of q, tiles of these sizes, and head dims rounded up."""
    defines: dict[str, str | int] = {"SCALAR": _SCALARS[q.dtype], "BLOCK_M": block_m, "BLOCK_N": block_n, **dims}
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
            raise ValueError(f"{name} must be a multiple of {THREADS} up to {THREADS * THREADS}, got {size}")


def check_seqlens(seqlens: Tensor | None, batch: int, length: int) -> None:
    """Raises a ValueError for lengths of another number, dtype or range."""
    if seqlens is None:
        return
    if seqlens.shape != (batch,) or seqlens.is_floating_point():
        raise ValueError(f"seqlens must be [B] = ({batch},) integers, got shape {tuple(seqlens.shape)} {seqlens.dtype}")
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
        raise ValueError(f"{name} must match {name[1:]}, {own}, got {tuple(given.shape)} {given.dtype}")
    if any(size > 1 and step == 0 for size, step in zip(given.shape, given.stride(), strict=True)):
        raise ValueError(
            f"{name} must hold each element apart, got stride 0 among {given.stride()} of {tuple(given.shape)}"
        )
    return given
