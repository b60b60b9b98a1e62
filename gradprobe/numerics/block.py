"""Block: one batch, some key heads, and the query heads that read them: what can be judged apart from all else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..model.case import Case

if TYPE_CHECKING:
    from torch import Tensor


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
        return (
            tensor[tuple(parts.get(letter, slice(None)) for letter in axes)] if axes else tensor
        )

    def inputs(self, case: Case, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The inputs of a block."""
        return {name: self.of(value, case.input_axes(name)) for name, value in values.items()}

    def case(self, case: Case) -> Case:
        """The case of a block's tensors."""
        heads, kv_heads = (
            self.heads.stop - self.heads.start,
            self.kv_heads.stop - self.kv_heads.start,
        )
        return replace(case.with_heads(heads, kv_heads), batch=1)


def block_at(batch: int, kv_head: int, group: int) -> Block:
    """The block of one key head, which so many query heads read."""
    return Block(
        batch, slice(kv_head, kv_head + 1), slice(kv_head * group, (kv_head + 1) * group)
    )


def blocks(case: Case, kv_heads: int) -> Iterator[Block]:
    """A case cut into blocks of at most so many key heads."""
    group = case.heads // case.kv_heads
    for batch in range(case.batch):
        for first in range(0, case.kv_heads, kv_heads):
            end = min(first + kv_heads, case.kv_heads)
            yield Block(batch, slice(first, end), slice(first * group, end * group))


def parts_of(block: Block) -> Iterator[Block]:
    """A block cut into its key heads."""
    group = (block.heads.stop - block.heads.start) // (block.kv_heads.stop - block.kv_heads.start)
    return (
        block_at(block.batch, one, group)
        for one in range(block.kv_heads.start, block.kv_heads.stop)
    )


# Elements of a block's results that are held at once in float64.
_AT_ONCE = 1 << 22


def key_heads_at_once(case: Case) -> int:
    """How many key heads a block may have."""
    longest, group = max(case.seqlen_q, case.seqlen_k), case.heads // case.kv_heads
    return max(1, _AT_ONCE // (longest * max(case.head_dim, case.head_dim_v) * group))
