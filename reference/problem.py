"""Attention: the tensors and options of one problem, in float64. Tile: the part of it that is worked on at once."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

import torch
from torch import Tensor

from .checks import check

Made = TypeVar("Made")


EVERY = slice(None)


@dataclass(frozen=True)
class Tile:
    """One batch, some heads, some query rows, and the keys that are looked at: all of them, or those that are seen."""

    batch: int
    heads: slice
    rows: slice
    keys: slice = field(default_factory=lambda: EVERY)


@dataclass(frozen=True)
class Attention:
    """One attention problem. Shapes and options as in `manual_attention_backward`; every floating tensor float64.

    Raises:
        ValueError: where shapes do not agree or an option does not exist in the family.
    """

    family: str
    q: Tensor
    k: Tensor
    v: Tensor
    do: Tensor
    scale: float
    causal: bool
    bias: Tensor | None = None
    tau: Tensor | None = None
    window: tuple[int, int] | None = None
    softcap: float | None = None
    seqlens: Tensor | None = None
    align: str = "bottom-right"
    alibi: Tensor | None = None
    mask: Tensor | None = None
    sinks: Tensor | None = None
    dropout: float = 0.0
    keep: Tensor | None = None
    cu_seqlens_q: Tensor | None = None
    cu_seqlens_k: Tensor | None = None
    """Those of the queries where they are not given."""

    def __post_init__(self) -> None:
        if self.cu_seqlens_k is None:
            object.__setattr__(self, "cu_seqlens_k", self.cu_seqlens_q)
        check(self)

    @property
    def n_batch(self) -> int:
        return self.q.shape[0]

    @property
    def n_heads(self) -> int:
        return self.q.shape[1]

    @property
    def n_query(self) -> int:
        return self.q.shape[2]

    @property
    def n_key(self) -> int:
        return self.k.shape[2]

    def kv_heads(self, tile: Tile) -> Tensor:
        """[h] the key/value head that each of the tile's query heads reads."""
        group = self.n_heads // self.k.shape[1]
        return torch.arange(tile.heads.start, tile.heads.stop, device=self.q.device) // group

    def tensors(self, tile: Tile) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """q [h, m, D], k [h, n, D], v [h, n, Dv] and do [h, m, Dv] of a tile; a NaN in the padding reads as 0."""
        rows, heads = (tile.batch, tile.heads, tile.rows), self.kv_heads(tile)
        k, v = (tensor[tile.batch, :, tile.keys][heads] for tensor in (self.k, self.v))
        q, do = self.q[rows], self.do[rows]
        if self.seqlens is None:
            return q, k, v, do
        i, j = self.positions(tile)
        dead_row, dead_key = i >= live_length(self, tile.batch), (j >= live_length(self, tile.batch)).mT
        return _live(q, dead_row), _live(k, dead_key), _live(v, dead_key), _live(do, dead_row)

    def positions(self, tile: Tile) -> tuple[Tensor, Tensor]:
        """i [m, 1] and j [1, n]."""
        i = torch.arange(tile.rows.start, tile.rows.stop, device=self.q.device)
        j = torch.arange(*tile.keys.indices(self.n_key), device=self.q.device)
        return i[:, None], j[None, :]

    def seen_keys(self, tile: Tile) -> slice:
        """A range of keys, one at least, outside of which all is hidden from the tile's rows.

        By causal and the window, by a length, and by the bounds of packed sequences.
        """
        (first, _), (_, end) = (self._seen_by(row, tile.batch) for row in (tile.rows.start, tile.rows.stop - 1))
        first = min(max(first, 0), self.n_key - 1)
        return slice(first, min(max(end, first + 1), self.n_key))

    def _seen_by(self, row: int, batch: int) -> tuple[int, int]:
        """The first key that this row or a later one sees, and the end of those that it or an earlier one sees."""
        (start, stop), shift = self._sequence_of(row)
        left, right = self.window or (-1, -1)
        right = 0 if self.causal else right
        first = min(max(row + shift - left, start), stop) if left >= 0 else start
        end = max(min(row + shift + right + 1, stop), start) if right >= 0 else stop
        return first, end if self.seqlens is None else min(end, live_length(self, batch))

    def _sequence_of(self, row: int) -> tuple[tuple[int, int], int]:
        """The keys of a row's sequence, and how far its diagonal lies from the row's own number."""
        of_queries, of_keys = self._ends
        at = bisect_right(of_queries, row) - 1
        corner = at + 1 if self.align == "bottom-right" else at
        return (of_keys[at], of_keys[at + 1]), of_keys[corner] - of_queries[corner]

    @cached_property
    def _ends(self) -> tuple[list[int], list[int]]:
        """Where the sequences of the queries, and of the keys, begin and end: one where none are packed."""
        if self.cu_seqlens_q is None or self.cu_seqlens_k is None:
            return [0, self.n_query], [0, self.n_key]
        return self.cu_seqlens_q.tolist(), self.cu_seqlens_k.tolist()

    def diagonal(self, tile: Tile) -> Tensor:
        """[m, 1] the key on each row's diagonal, which causal, the window and alibi count from; no key may lie there.

        Packed sequences have a diagonal each: bottom-right, it ends in the corner of the sequence's last row and key.
        """
        i, _ = self.positions(tile)
        if self.cu_seqlens_q is None or self.cu_seqlens_k is None:
            return i + self.n_key - self.n_query if self.align == "bottom-right" else i
        corner = slice(1, None) if self.align == "bottom-right" else slice(None, -1)
        shift = self.cu_seqlens_k.long()[corner] - self.cu_seqlens_q.long()[corner]
        return i + shift[_sequence(i, self.cu_seqlens_q)]

    def valid(self, tile: Tile) -> Tensor:
        """[h, m, n] bool, or [1, m, n] where all heads see alike: which keys each row sees.

        A bias of minus infinity hides its key as a mask does.
        """
        i, j = self.positions(tile)
        diagonal, (left, right) = self.diagonal(tile), self.window or (-1, -1)
        length = live_length(self, tile.batch)
        seen = (i < length) & (j < length) if self.seqlens is not None else (i >= 0) & (j >= 0)
        seen = seen & (j <= diagonal) if self.causal else seen
        seen = seen & (j >= diagonal - left) if left >= 0 else seen
        seen = seen & (j <= diagonal + right) if right >= 0 else seen
        if self.cu_seqlens_q is not None and self.cu_seqlens_k is not None:
            seen = seen & (_sequence(i, self.cu_seqlens_q) == _sequence(j, self.cu_seqlens_k))
        seen = seen[None]
        seen = seen if self.mask is None else seen & part(self.mask, tile)
        if self.family == "softmax" and self.bias is not None:
            seen = seen & (part(self.bias, tile) != -torch.inf)
        return seen

    def once(self, name: str, tile: Tile, make: Callable[[], Made]) -> Made:
        """What is made of a tile and of nothing else: a problem that is evaluated again and again may keep it."""
        return make()

    def bias_part(self, like_bias: Tensor, tile: Tile) -> Tensor:
        """The part of a tensor in bias's shape that belongs to a tile: [h, W] for lazy, else what broadcasts to it."""
        return like_bias[tile.heads] if self.family == "lazy" else part(like_bias, tile)


def part(tensor: Tensor, tile: Tile) -> Tensor:
    """The part of what broadcasts to [B, H, M, N] that belongs to a tile: it broadcasts to [h, m, n]."""
    full = tensor[(None,) * (4 - tensor.dim())]
    b, h, m, n = (size > 1 for size in full.shape)
    heads, rows, keys = (tile.heads if h else EVERY), (tile.rows if m else EVERY), (tile.keys if n else EVERY)
    return full[tile.batch if b else 0, heads, rows, keys]


def _sequence(at: Tensor, cu_seqlens: Tensor) -> Tensor:
    """The packed sequence that each place belongs to; an empty one has none."""
    return torch.bucketize(at, cu_seqlens.long()[1:], right=True)


def _live(tensor: Tensor, dead: Tensor) -> Tensor:
    return tensor.masked_fill(dead & ~tensor.isfinite(), 0.0)


def live_length(x: Attention, batch: int) -> int:
    """The number of live rows of a batch."""
    return x.n_query if x.seqlens is None else int(x.seqlens[batch])


@dataclass
class Steps:
    """Notes each computed intermediate, and hands on the given value in its place where there is one."""

    given: Mapping[str, Tensor]
    wanted: Collection[str] | None = None
    """The results that are wanted; None for all."""
    computed: dict[str, Tensor] = field(default_factory=dict)

    def __call__(self, name: str, value: Tensor) -> Tensor:
        self.computed[name] = value
        return self.given.get(name, value)

    def last(self, name: str, make: Callable[[], Tensor]) -> None:
        """The same of what nothing else is made of: it is computed where it is wanted."""
        if self.wanted is None or name in self.wanted:
            self(name, make())


def kept_share(x: Attention, tile: Tile) -> Tensor | None:
    """[h, m, n] keep / (1 - p), by which dropout multiplies P and dP; None without dropout."""
    return None if x.keep is None else part(x.keep, tile).double() / (1 - x.dropout)
