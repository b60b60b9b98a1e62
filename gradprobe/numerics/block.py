"""Block: one batch, some key heads, and the query heads that read them: what can be judged apart from all else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..model.case import Case

if TYPE_CHECKING:
    from torch import Tensor

# Elements of a block's results that are held at once in float64.
_AT_ONCE = 1 << 22


@dataclass(frozen=True)
class Block:
    """A part of a case."""

    batch: int
    kv_heads: slice
    heads: slice

    def of(self, tensor: Tensor, axes: str) -> Tensor:
        """A tensor's part, a view of it, with a batch axis of 1.

        Args:
            axes: one letter each, from the table of intermediates; "" of what belongs to all blocks.
        """
        parts = {"b": slice(self.batch, self.batch + 1), "h": self.heads, "g": self.kv_heads}
        place = tuple(parts.get(letter, slice(None)) for letter in axes)
        return tensor[place] if axes else tensor

    def inputs(self, case: Case, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: self.of(value, case.input_axes(name)) for name, value in values.items()}

    def case(self, case: Case) -> Case:
        """The case of a block's tensors."""
        sizes = (part.stop - part.start for part in (self.heads, self.kv_heads))
        return replace(case.with_heads(*sizes), batch=1)


def block_at(batch: int, kv_head: int, group: int, kv_heads: int = 1) -> Block:
    """The block of some key heads, each of which so many query heads read."""
    end = kv_head + kv_heads
    return Block(batch, slice(kv_head, end), slice(kv_head * group, end * group))


def blocks(case: Case, kv_heads: int = 0) -> Iterator[Block]:
    """A case cut into blocks of at most so many key heads; 0 for as many as fit."""
    group = case.heads // case.kv_heads
    longest, dim = max(case.seqlen_q, case.seqlen_k), max(case.head_dim, case.head_dim_v)
    kv_heads = kv_heads or max(1, _AT_ONCE // (longest * dim * group))
    for batch in range(case.batch):
        for first in range(0, case.kv_heads, kv_heads):
            yield block_at(batch, first, group, min(kv_heads, case.kv_heads - first))
