"""Shards: which rows, keys and heads of the whole each rank holds; tensors cut into shards, and put together again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ..model.assignment import AS_SAVED
from ..model.case import Case
from ..model.failures import TargetFailure, UsageFailure

if TYPE_CHECKING:
    from torch import Tensor

HEADS = "heads"
_ROWS, _KEYS = "m", "n"
Positions = Callable[[int, int], Sequence[Sequence[int]]]
"""(length, ranks) -> for each rank the positions in the sequence that it holds, in its own order."""


@dataclass(frozen=True)
class Shards:
    """How one problem is divided among ranks."""

    case: Case
    """The whole."""
    held: Mapping[str, Sequence[Sequence[int]]]
    """By an axis's letter, "m" and "n" or "h" and "g": for each rank the indices that it holds, in its own order."""

    @property
    def ranks(self) -> int:
        return len(next(iter(self.held.values())))

    @property
    def are_heads(self) -> bool:
        """Whether ranks hold whole sequences of some heads, and see nothing of one another's."""
        return "h" in self.held

    def of_case(self, rank: int) -> Case:
        """The case of one rank's shard, as for a target that is given no more than that."""
        own = {name: letter for letter, name in _SIZES.items() if letter in self.held}
        sizes: dict[str, Any] = {name: len(self.held[letter][rank]) for name, letter in own.items()}
        return replace(self.case, ranks=None, shards=Case.shards, layouts=(), runs=(), **sizes)

    def cut(self, tensors: Mapping[str, Tensor], axes: Callable[[str], str], rank: int) -> dict[str, Tensor]:
        """One rank's part of each tensor, contiguous and on the CPU; what has none of the divided axes is whole.

        Args:
            axes: of a tensor by its name, one letter each.
        """
        found = {}
        for name, tensor in tensors.items():
            part = tensor
            for at, letter in enumerate(axes(name)):
                if letter in self.held:
                    part = part.index_select(at, self._index(letter, rank).to(part.device))
            found[name] = part.cpu().contiguous()
        return found

    def joined(self, parts: Sequence[Tensor], axes: str) -> Tensor:
        """The whole of one intermediate.

        Raises:
            TargetFailure: ranks hold it in several dtypes.
        """
        import torch

        at = next((at for at, letter in enumerate(axes) if letter in self.held), None)
        if at is None:
            return parts[0]
        if len(dtypes := {str(part.dtype).removeprefix("torch.") for part in parts}) > 1:
            raise TargetFailure(f"ranks return one result in several dtypes: {', '.join(sorted(dtypes))}")
        order = torch.cat([self._index(axes[at], rank) for rank in range(self.ranks)])
        return torch.cat(list(parts), at).index_select(at, order.argsort())

    def owner(self, letter: str, index: int) -> tuple[int, int] | None:
        """The rank that holds an index of an axis, and where in its shard; None of an axis that is not divided."""
        return self._owners[letter][index] if letter in self.held else None

    @cached_property
    def _owners(self) -> dict[str, dict[int, tuple[int, int]]]:
        return {
            letter: {index: (rank, at) for rank, own in enumerate(of_ranks) for at, index in enumerate(own)}
            for letter, of_ranks in self.held.items()
        }

    def _index(self, letter: str, rank: int) -> Tensor:
        import torch

        return torch.tensor(self.held[letter][rank])


_SIZES = {"m": "seqlen_q", "n": "seqlen_k", "h": "heads", "g": "kv_heads"}


def shards_of(case: Case, own: Positions | None = None) -> Shards:
    """How a case is divided.

    Args:
        own: the function that `case.shards` names, where that is no word of SHARDS.

    Raises:
        UsageFailure: the lengths or heads cannot be divided so, or a function of the user's own does not divide them.
    """
    assert case.ranks is not None
    if case.shards == HEADS:
        held: dict[str, Any] = {"h": _even(case, "heads", 1), "g": _even(case, "kv_heads", 1)}
        return Shards(case, {letter: _contiguous(*sizes) for letter, sizes in held.items()})
    if own is not None:
        lengths = {_ROWS: case.seqlen_q, _KEYS: case.seqlen_k}
        return Shards(case, {letter: _own(own, case, length) for letter, length in lengths.items()})
    parts = 2 if case.shards == "zigzag" else 1
    held = {_ROWS: _even(case, "seqlen_q", parts), _KEYS: _even(case, "seqlen_k", parts)}
    return Shards(case, {letter: WAYS[case.shards](*sizes) for letter, sizes in held.items()})


def _even(case: Case, name: str, parts: int) -> tuple[int, int]:
    """A length and the number of ranks, where that many times `parts` divide it."""
    assert case.ranks is not None
    length, of = int(getattr(case, name)), case.ranks * parts
    if length % of:
        words = f"{case.shards} shards of {case.ranks} ranks need a multiple of {of}, got {length}"
        raise UsageFailure(f"--{name.replace('_', '-')}: {words}", f"for example {-(-length // of) * of}")
    return length, case.ranks


def _contiguous(length: int, ranks: int) -> list[list[int]]:
    step = length // ranks
    return [list(range(rank * step, (rank + 1) * step)) for rank in range(ranks)]


def _striped(length: int, ranks: int) -> list[list[int]]:
    return [list(range(rank, length, ranks)) for rank in range(ranks)]


def _zigzag(length: int, ranks: int) -> list[list[int]]:
    parts = _contiguous(length, 2 * ranks)
    return [parts[rank] + parts[-1 - rank] for rank in range(ranks)]


def _unmirrored(length: int, ranks: int) -> list[list[int]]:
    parts = _contiguous(length, 2 * ranks)
    return [parts[rank] + parts[ranks + rank] for rank in range(ranks)]


WAYS: Mapping[str, Callable[[int, int], list[list[int]]]] = {
    "contiguous": _contiguous, "zigzag": _zigzag, "striped": _striped,
}  # fmt: skip
UNMIRRORED = "zigzag, its second halves not mirrored"
TAKEN_FOR: Mapping[str, Callable[[int, int], list[list[int]]]] = {**WAYS, UNMIRRORED: _unmirrored}
"""What a target may take its shards for."""


def _own(own: Positions, case: Case, length: int) -> list[list[int]]:
    held = [[int(index) for index in of_rank] for of_rank in own(length, case.ranks or 1)]
    if len(held) != case.ranks or sorted(index for of_rank in held for index in of_rank) != list(range(length)):
        came = f"{len(held)} of {sum(map(len, held))} positions"
        raise UsageFailure(
            f"--shards {case.shards}: must divide {length} positions among {case.ranks} ranks, each once; got {came}",
            "return for each rank the positions that it holds: [[0, 1], [2, 3]] of (4, 2)",
        )
    return held


def without_saved(assigned: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    """How shards lie: where whole tensors lie as they were saved, shards of them are contiguous."""
    return tuple(one for one in assigned if one[1] != AS_SAVED)
