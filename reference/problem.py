"""Attention: the tensors and options of one problem, in float64. Tile: the part of it that is worked on at once."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

import torch
from torch import Tensor

Made = TypeVar("Made")
EVERY = slice(None)
SOFTMAX_ONLY = ("alibi", "mask", "sinks", "keep", "cu_seqlens_q", "cu_seqlens_k")
ALIGNMENTS = ("bottom-right", "top-left")


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

    def product(self, name: str, left: Tensor, right: Tensor, scale: float = 1.0) -> None:
        """The same of a multiple of two matrices' product."""
        if self.wanted is None or name in self.wanted:
            self(name, left @ right if scale == 1 else scale * (left @ right))


def kept_share(x: Attention, tile: Tile) -> Tensor | None:
    """[h, m, n] keep / (1 - p), by which dropout multiplies P and dP; None without dropout."""
    return None if x.keep is None else part(x.keep, tile).double() / (1 - x.dropout)


# --- what no problem can be: every refusal is a sentence with the subject, the rule and what came


def check(x: Attention) -> None:
    """Does nothing for a problem that exists.

    Raises:
        ValueError: where shapes do not agree or an option does not exist in the family.
    """
    if x.family not in ("lazy", "softmax"):
        raise ValueError(f"family must be lazy or softmax, got {x.family!r}")
    for name in ("q", "k", "v", "do"):
        if getattr(x, name).dim() != 4:
            raise ValueError(f"{name} must have four axes, [B, H, L, D], got {_shape(getattr(x, name))}")
    _check_heads(x)
    _check_lengths(x)
    if x.softcap is not None and not x.softcap > 0:
        raise ValueError(f"softcap must be above 0, got {x.softcap}")
    _check_lazy(x) if x.family == "lazy" else _check_softmax(x)


def _check_heads(x: Attention) -> None:
    (batch, heads, queries, dim), (_, kv_heads, keys, _) = x.q.shape, x.k.shape
    value_dim = x.v.shape[3]
    expected = {
        "k": (batch, kv_heads, keys, dim), "v": (batch, kv_heads, keys, value_dim),
        "do": (batch, heads, queries, value_dim),
    }  # fmt: skip
    for name, shape in expected.items():
        if getattr(x, name).shape != shape:
            raise ValueError(f"{name} must be {list(shape)} beside q {_shape(x.q)}, got {_shape(getattr(x, name))}")
    if kv_heads == 0 or heads % kv_heads:
        raise ValueError(f"the heads of k must divide those of q, got {kv_heads} and {heads}")


def _check_lengths(x: Attention) -> None:
    if x.seqlens is None:
        return
    if x.n_query != x.n_key:
        raise ValueError(f"seqlens (right padding) needs as many keys as query rows, got {x.n_key} and {x.n_query}")
    if x.seqlens.shape != (x.n_batch,):
        raise ValueError(f"seqlens must be [B] = [{x.n_batch}], got {_shape(x.seqlens)}")
    if bool(((x.seqlens < 0) | (x.seqlens > x.n_query)).any()):
        raise ValueError(f"seqlens must lie in 0 to {x.n_query}, got {x.seqlens.tolist()}")


def _check_lazy(x: Attention) -> None:
    if x.tau is None or x.tau.shape != (x.n_heads,):
        raise ValueError(f"the lazy family needs tau [H] = [{x.n_heads}], got {_shape(x.tau)}")
    if x.bias is not None and (x.bias.dim() != 2 or x.bias.shape[0] != x.n_heads or not x.bias.shape[1]):
        raise ValueError(f"lazy bias must be [H, W] with H = {x.n_heads} and W > 0, got {_shape(x.bias)}")
    if x.window is not None or x.softcap is not None or not x.causal:
        raise ValueError("the lazy family is always causal and has neither window nor softcap")
    if x.align != "bottom-right":
        raise ValueError(f"the lazy family has no align, got {x.align!r}")
    for name in SOFTMAX_ONLY:
        if getattr(x, name) is not None:
            raise ValueError(f"the lazy family has no {name}, got {_shape(getattr(x, name))}")
    if x.dropout:
        raise ValueError(f"the lazy family has no dropout, got {x.dropout}")
    if x.q.shape != x.k.shape:
        raise ValueError(f"the lazy family needs q and k of one shape, got {_shape(x.q)} and {_shape(x.k)}")


def _check_softmax(x: Attention) -> None:
    if x.tau is not None:
        raise ValueError("the softmax family has no tau")
    if x.align not in ALIGNMENTS:
        raise ValueError(f"align must be {' or '.join(ALIGNMENTS)}, got {x.align!r}")
    for name in ("bias", "mask"):
        _check_broadcast(x, name)
    if x.mask is not None and x.mask.dtype != torch.bool:
        raise ValueError(f"mask must be bool, True where a row attends, got {x.mask.dtype}")
    for name in ("alibi", "sinks"):
        tensor = getattr(x, name)
        if tensor is not None and tensor.shape != (x.n_heads,):
            raise ValueError(f"{name} must be [H] = [{x.n_heads}], got {_shape(tensor)}")
    _check_dropout(x)
    _check_packed(x)


def _check_broadcast(x: Attention, name: str) -> None:
    tensor, full = getattr(x, name), _full(x)
    if tensor is None:
        return
    shape = (1,) * (4 - tensor.dim()) + tuple(tensor.shape)
    if len(shape) > 4 or any(size not in (1, whole) for size, whole in zip(shape, full, strict=True)):
        raise ValueError(f"{name} must broadcast to [B, H, M, N] = {list(full)}, got {_shape(tensor)}")


def _check_dropout(x: Attention) -> None:
    if not 0 <= x.dropout < 1:
        raise ValueError(f"dropout must be at least 0 and below 1, got {x.dropout}")
    if x.dropout and x.keep is None:
        raise ValueError(f"dropout needs keep, what it kept, got None beside a dropout of {x.dropout}")
    if x.keep is not None and x.keep.dtype != torch.bool:
        raise ValueError(f"keep must be bool, True where P is kept, got {x.keep.dtype}")
    if x.keep is not None and x.keep.shape != _full(x):
        raise ValueError(f"keep must be [B, H, M, N] = {list(_full(x))}, got {_shape(x.keep)}")


def _check_packed(x: Attention) -> None:
    if x.cu_seqlens_q is None:
        if x.cu_seqlens_k is not None:
            raise ValueError("cu_seqlens_k needs cu_seqlens_q, got None")
        return
    if x.seqlens is not None:
        raise ValueError("seqlens (right padding) and cu_seqlens (packed sequences) exclude each other, got both")
    if x.n_batch != 1:
        raise ValueError(f"cu_seqlens needs a batch of 1, which holds every packed sequence, got {x.n_batch}")
    assert x.cu_seqlens_k is not None
    _check_cumulative("cu_seqlens_q", x.cu_seqlens_q, x.n_query)
    _check_cumulative("cu_seqlens_k", x.cu_seqlens_k, x.n_key)
    if x.cu_seqlens_q.shape != x.cu_seqlens_k.shape:
        got = f"{len(x.cu_seqlens_q)} and {len(x.cu_seqlens_k)}"
        raise ValueError(f"cu_seqlens_q and cu_seqlens_k must have as many entries as each other, got {got}")


def _check_cumulative(name: str, tensor: Tensor, total: int) -> None:
    if tensor.dim() != 1 or len(tensor) < 2 or tensor.is_floating_point() or tensor.dtype == torch.bool:
        raise ValueError(f"{name} must be [n + 1] integers for n sequences, got {tensor.dtype} {_shape(tensor)}")
    ends = tensor.tolist()
    if ends[0] != 0 or ends[-1] != total or ends != sorted(ends):
        raise ValueError(f"{name} must ascend from 0 to {total}, got {_short(ends)}")


def _short(numbers: Sequence[int]) -> str:
    return f"[{', '.join(map(str, numbers))}]" if len(numbers) <= 8 else f"{[*numbers[:4]]} ... {numbers[-1]}"


def _full(x: Attention) -> tuple[int, int, int, int]:
    return x.n_batch, x.n_heads, x.n_query, x.n_key


def _shape(tensor: Tensor | None) -> list[int] | None:
    return None if tensor is None else list(tensor.shape)
