"""Shards: which rows, keys and heads of the whole each rank holds; tensors cut into shards, and put together again."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from msgspec import structs
from torch import Tensor

from ..model.case import SHARDS, Case, flag_of
from ..model.failures import TargetFailure, UsageFailure, did_you_mean
from ..model.intermediates import slots
from ..model.layout_run import Element
from ..model.number import in_words, spans
from ..numerics.evidence import Steps
from ..targets.find import find_function

MOST_RANKS = 64
HEADS = "heads"
_SIZES = {"m": "seqlen_q", "n": "seqlen_k", "h": "heads", "g": "kv_heads"}
# What has a row or a key of its own for each entry of the scores belongs to two ranks at once.
_WHOLE = ("bias", "mask", "dropout", "sinks", "seqlens", "cu_seqlens_q")
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

    def index(self, letter: str, rank: int) -> Tensor:
        return torch.tensor(self.held[letter][rank])

    def of_case(self, rank: int) -> Case:
        """The case of one rank's shard, as for a target that is given no more than that."""
        sizes: dict[str, Any] = {
            _SIZES[letter]: len(own[rank]) for letter, own in self.held.items()
        }
        return replace(self.case, ranks=None, shards=Case.shards, layouts=(), runs=(), **sizes)

    def cut(
        self, tensors: Mapping[str, Tensor], axes: Callable[[str], str], rank: int
    ) -> dict[str, Tensor]:
        """One rank's part of each tensor, contiguous and on the CPU; what has none of the divided axes is whole.

        Args:
            axes: of a tensor by its name, one letter each.
        """
        found = {}
        for name, tensor in tensors.items():
            part = tensor
            for at, letter in enumerate(axes(name)):
                if letter in self.held:
                    part = part.index_select(at, self.index(letter, rank).to(part.device))
            found[name] = part.cpu().contiguous()
        return found

    def joined(self, parts: Sequence[Tensor], axes: str) -> Tensor:
        """The whole of one intermediate.

        Raises:
            TargetFailure: ranks hold it in several dtypes.
        """
        at = next((at for at, letter in enumerate(axes) if letter in self.held), None)
        if at is None:
            return parts[0]
        if len(dtypes := {str(part.dtype).removeprefix("torch.") for part in parts}) > 1:
            raise TargetFailure(
                f"ranks return one result in several dtypes: {', '.join(sorted(dtypes))}"
            )
        order = torch.cat([self.index(axes[at], rank) for rank in range(self.ranks)])
        return torch.cat(list(parts), at).index_select(at, order.argsort())

    def owner(self, letter: str, index: int) -> tuple[int, int] | None:
        """The rank that holds an index of an axis, and where in its shard; None of an axis that is not divided."""
        of_ranks = enumerate(self.held.get(letter, ()))
        return next(
            ((rank, list(own).index(index)) for rank, own in of_ranks if index in own), None
        )


def on_ranks(element: Element | None, case: Case, steps: Steps) -> Element | None:
    """An element with the shard that holds it, its tile there, and the step that made it wrong.

    An entry of P, dP and dS is met by one rank in one step, whatever made it wrong.
    """
    if element is None:
        return None
    axes, shards = case.axes(element.intermediate), division(case)
    letters = dict(
        zip(slots(axes), (element.batch, element.head, element.row, element.col), strict=True)
    )
    owners = {
        letter: shards.owner(letter, at)
        for letter, at in letters.items()
        if letter and at is not None
    }
    at = {letter: owner for letter, owner in owners.items() if owner is not None}
    if not at:
        return element
    held = next(at[letter][0] for letter in "mnhg" if letter in at)
    rank, step = steps.get((element.intermediate, held), (None, None))
    if "m" in at and "n" in at:
        rank, step = held, (held - at["n"][0]) % shards.ranks
    m, n = element.tile
    m, n = (
        at["m"][1] // case.block_m if "m" in at else m,
        at["n"][1] // case.block_n if "n" in at else n,
    )
    return structs.replace(element, shard=held, rank=rank, step=step, tile=(m, n))


def ranks_in_words(ranks: Iterable[int]) -> str:
    """`rank 2`, `ranks 0-2, 5`."""
    own = sorted(set(ranks))
    return f"rank{'s' if len(own) > 1 else ''} {in_words(spans(own))}"


@functools.lru_cache(maxsize=64)
def division(case: Case) -> Shards:
    """How a case is divided among its ranks.

    Raises:
        Failure: it cannot be, or the user's own function for it cannot be found.
    """
    path, _, name = case.shards.rpartition(":")
    own = (
        find_function(f"{Path(path).resolve()}:{name}").function if path.endswith(".py") else None
    )
    return shards_of(case, own)


def shards_of(case: Case, own: Positions | None = None) -> Shards:
    """How a case is divided.

    Args:
        own: the function that `case.shards` names, where that is no word of SHARDS.

    Raises:
        UsageFailure: it cannot be divided so, or a function of the user's own does not divide it.
    """
    _refuse_undivided(case)
    if case.shards == HEADS:
        return Shards(case, {letter: _contiguous(*_even(case, letter, 1)) for letter in "hg"})
    if own is not None:
        return Shards(
            case, {letter: _own(own, case, getattr(case, _SIZES[letter])) for letter in "mn"}
        )
    way, parts = WAYS[case.shards], 2 if case.shards == "zigzag" else 1
    return Shards(case, {letter: way(*_even(case, letter, parts)) for letter in "mn"})


def _refuse_undivided(case: Case) -> None:
    ranks = case.ranks or 0
    if not 2 <= ranks <= MOST_RANKS:
        raise UsageFailure(f"--ranks must lie in 2 to {MOST_RANKS}, got {ranks}")
    if case.shards not in SHARDS and not case.shards.partition(":")[0].endswith(".py"):
        way_out = did_you_mean(case.shards, SHARDS, "known")
        raise UsageFailure(
            f"--shards {case.shards}: no such way, and no FILE.py:FUNCTION", way_out
        )
    for name in _WHOLE:
        if getattr(case, name):
            raise UsageFailure(
                f"{flag_of(name).removesuffix('-q')}: it is not divided among ranks",
                "drop it, or --ranks",
            )
    if case.family != "softmax":
        raise UsageFailure(
            f"--ranks: the {case.family} family is not divided among ranks", "drop it"
        )


def _even(case: Case, letter: str, parts: int) -> tuple[int, int]:
    """A length and the number of ranks, where that many times `parts` divide it."""
    name, ranks = _SIZES[letter], case.ranks or 0
    length, of = int(getattr(case, name)), ranks * parts
    if length % of:
        words = f"{case.shards} shards of {ranks} ranks need a multiple of {of}, got {length}"
        raise UsageFailure(f"{flag_of(name)}: {words}", f"for example {-(-length // of) * of}")
    return length, ranks


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


WAYS = {"contiguous": _contiguous, "zigzag": _zigzag, "striped": _striped}
TAKEN_FOR = {**WAYS, "zigzag, its second halves not mirrored": _unmirrored}
"""What a target may take its shards for."""


def _own(own: Positions, case: Case, length: int) -> list[list[int]]:
    held = [[int(index) for index in of_rank] for of_rank in own(length, case.ranks or 1)]
    if len(held) != case.ranks or sorted(index for of_rank in held for index in of_rank) != list(
        range(length)
    ):
        came = f"{len(held)} of {sum(map(len, held))} positions"
        raise UsageFailure(
            f"--shards {case.shards}: must divide {length} positions among {case.ranks} ranks, each once; got {came}",
            "return for each rank the positions that it holds: [[0, 1], [2, 3]] of (4, 2)",
        )
    return held
