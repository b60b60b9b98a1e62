"""Which keys each query row may see, for libraries that are told by a mask."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

import torch
from torch import Tensor


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

    def visible(self) -> Tensor | None:
        """bool, four axes that broadcast to [B, H, M, N], True where a row may see a key; None where all do."""
        parts = []
        if self.causal:
            parts.append((self.distance() >= 0)[None, None])
        if self.window is not None:
            left, right = self.window
            distance = self.distance()[None, None]
            parts += [distance <= left] if left >= 0 else []
            parts += [distance >= -right] if right >= 0 else []
        if self.mask is not None:
            parts.append(self.mask)
        if self.seqlens is not None:
            ends = self.seqlens.view(-1, 1, 1, 1)
            parts.append(torch.arange(self.rows, device=self.device)[:, None] < ends)
            parts.append(torch.arange(self.keys, device=self.device) < ends)
        if self.cu_seqlens_q is not None:
            same = self.sequence_of_rows()[:, None] == self.sequence_of_keys()
            parts.append(same[None, None])
        return functools.reduce(torch.logical_and, parts) if parts else None


def _sequence(ends: Tensor | None, count: int, device: torch.device) -> Tensor:
    """[count] the sequence of each index: the last that begins at or before it. An empty one holds no index."""
    index = torch.arange(count, device=device)
    if ends is None:
        return torch.zeros_like(index)
    return torch.searchsorted(ends[1:].contiguous().long(), index, right=True)
