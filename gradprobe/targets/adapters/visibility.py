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

    @property
    def is_causal_from_top_left(self) -> bool:
        """Whether a causal mask whose diagonal begins at row 0 and key 0 says it all."""
        begins_there = self.align == "top-left" or self.rows == self.keys
        return self.causal and begins_there and replace(self, causal=False).visible() is None

    def distance(self) -> Tensor:
        """[M, N] how far each key lies before the diagonal of each row. It means nothing between two sequences."""
        i = torch.arange(self.rows, device=self.device)
        j = torch.arange(self.keys, device=self.device)
        if self.cu_seqlens_q is None or self.cu_seqlens_k is None:
            shift = self.keys - self.rows if self.align == "bottom-right" else 0
            return i[:, None] + shift - j
        of_row, of_key = _sequence(self.cu_seqlens_q, i), _sequence(self.cu_seqlens_k, j)
        diagonal = i - self.cu_seqlens_q[of_row]
        if self.align == "bottom-right":
            diagonal += (self.cu_seqlens_k.diff() - self.cu_seqlens_q.diff())[of_row]
        return diagonal[:, None] - (j - self.cu_seqlens_k[of_key])

    def visible(self) -> Tensor | None:
        """bool, four axes that broadcast to [B, H, M, N], True where a row may see a key; None where all do."""
        i = torch.arange(self.rows, device=self.device)[:, None]
        j = torch.arange(self.keys, device=self.device)
        left, right = self.window or (-1, -1)
        right = 0 if self.causal else right
        parts = [] if self.mask is None else [self.mask]
        if self.window is not None or self.causal:
            distance = self.distance()[None, None]
            left = left if left >= 0 else self.rows + self.keys
            right = right if right >= 0 else self.rows + self.keys
            parts.append((distance <= left) & (distance >= -right))
        if self.seqlens is not None:
            ends = self.seqlens.view(-1, 1, 1, 1)
            parts.append((i < ends) & (j < ends))
        if self.cu_seqlens_q is not None and self.cu_seqlens_k is not None:
            same = _sequence(self.cu_seqlens_q, i) == _sequence(self.cu_seqlens_k, j)
            parts.append(same[None, None])
        return functools.reduce(torch.logical_and, parts) if parts else None

    def added(self, bias: Tensor | None, alibi: Tensor | None) -> Tensor | None:
        """What bias and alibi add to the scores, four axes that broadcast to [B, H, M, N]; None for nothing.

        Alibi stays in the dtype of its slopes: in 16 bits its larger terms would be off by more than the scores are.
        """
        if alibi is None:
            return bias
        slanted = -alibi[:, None, None] * self.distance().abs()
        return slanted[None] if bias is None else bias + slanted


def _sequence(ends: Tensor, index: Tensor) -> Tensor:
    """The packed sequence of each index: the last that begins at or before it. An empty one holds no index."""
    return torch.searchsorted(ends[1:].contiguous().long(), index, right=True)
