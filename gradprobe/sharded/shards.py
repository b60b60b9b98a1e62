"""Shards: which rows, keys and heads of the whole each rank holds; tensors cut into shards, and put together again."""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from msgspec import structs
from torch import Tensor

from ..model.case import SHARDS, Case, flag_of
from ..model.failures import TargetFailure, UsageFailure, did_you_mean, refuse_if
from ..model.intermediates import slots
from ..model.layout_run import Element
from ..model.number import in_words, spans
from ..numerics.evidence import Steps

MOST_RANKS = 64
HEADS = "heads"
_SIZES = {"m": "seqlen_q", "n": "seqlen_k", "h": "heads", "g": "kv_heads"}
# What has a row or a key of its own for each entry of the scores belongs to two ranks at once.
_WHOLE = ("bias", "mask", "dropout", "sinks", "seqlens", "cu_seqlens_q")


@dataclass(frozen=True)
class Shards:
    case: Case  # the whole
    # By an axis's letter, "m" and "n" or "h" and "g": for each rank the indices that it holds, in its own order.
    held: Mapping[str, Sequence[Sequence[int]]]

    @property
    def ranks(self) -> int:
        return len(next(iter(self.held.values())))

    @property
    def are_heads(self) -> bool:
        """Whether ranks hold whole sequences, and see nothing of one another's."""
        return "h" in self.held

    def index(self, letter: str, rank: int) -> Tensor:
        return torch.tensor(self.held[letter][rank])

    def of_case(self, rank: int) -> Case:
        """As for a target that is given no more than one rank's shard."""
        sizes: dict[str, Any] = {_SIZES[axis]: len(own[rank]) for axis, own in self.held.items()}
        return replace(self.case, ranks=None, shards=Case.shards, layouts=(), runs=(), **sizes)

    def cut(
        self, tensors: Mapping[str, Tensor], axes: Callable[[str], str], rank: int
    ) -> dict[str, Tensor]:
        """One rank's part of each tensor, contiguous and on the CPU."""
        found = dict(tensors)
        for name in tensors:
            for at, letter in enumerate(axes(name)):
                if letter in self.held:
                    index = self.index(letter, rank).to(found[name].device)
                    found[name] = found[name].index_select(at, index)
        return {name: part.cpu().contiguous() for name, part in found.items()}

    def joined(self, parts: Sequence[Tensor], axes: str) -> Tensor:
        at = next((at for at, letter in enumerate(axes) if letter in self.held), None)
        if at is None:
            return parts[0]
        dtypes = sorted({str(part.dtype).removeprefix("torch.") for part in parts})
        if len(dtypes) > 1:
            words = f"ranks return one result in several dtypes: {', '.join(dtypes)}"
            raise TargetFailure(words)
        order = torch.cat([self.index(axes[at], rank) for rank in range(self.ranks)])
        return torch.cat(list(parts), at).index_select(at, order.argsort())

    def owner(self, letter: str, index: int) -> tuple[int, int] | None:
        """The rank that holds an index, and where in its shard; None of an axis that is not divided."""
        for rank, own in enumerate(self.held.get(letter, ())):
            if index in own:
                return rank, list(own).index(index)
        return None


def on_ranks(element: Element | None, case: Case, steps: Steps) -> Element | None:
    """An element with the shard that holds it, its tile there, and the step that made it wrong.

    An entry of P, dP and dS is met by one rank in one step, whatever made it wrong.
    """
    if element is None:
        return None
    axes, shards = case.axes(element.intermediate), division(case)
    place = (element.batch, element.head, element.row, element.col)
    at = dict[str, tuple[int, int]]()
    for letter, index in zip(slots(axes), place, strict=True):
        if letter and index is not None and (owner := shards.owner(letter, index)) is not None:
            at[letter] = owner
    if not at:
        return element
    held = next(at[letter][0] for letter in "mnhg" if letter in at)
    rank, step = steps.get((element.intermediate, held), (None, None))
    if "m" in at and "n" in at:
        rank, step = held, (held - at["n"][0]) % shards.ranks
    m, n = element.tile
    m = at["m"][1] // case.block_m if "m" in at else m
    n = at["n"][1] // case.block_n if "n" in at else n
    return structs.replace(element, shard=held, rank=rank, step=step, tile=(m, n))


def ranks_in_words(ranks: Iterable[int]) -> str:
    """`rank 2`, `ranks 0-2, 5`."""
    own = sorted(set(ranks))
    return f"rank{'s' if len(own) > 1 else ''} {in_words(spans(own))}"


@functools.lru_cache(maxsize=64)
def division(case: Case) -> Shards:
    """How a case is divided among its ranks; UsageFailure where it cannot be."""
    if not 2 <= (case.ranks or 0) <= MOST_RANKS:
        raise UsageFailure(f"--ranks must lie in 2 to {MOST_RANKS}, got {case.ranks}")
    if case.shards not in SHARDS:
        words = f"--shards {case.shards}: no such way"
        raise UsageFailure(words, did_you_mean(case.shards, SHARDS, "known"))
    undivided = {f"the {case.family} family": case.family != "softmax"}
    for name in _WHOLE:
        undivided[flag_of(name).removesuffix("-q")] = bool(getattr(case, name))
    for what, is_given in undivided.items():
        refuse_if(is_given, f"{what}: it is not divided among ranks", "drop it, or --ranks")
    axes = "hg" if case.shards == HEADS else "mn"
    return Shards(case, {axis: _indices(case, axis) for axis in axes})


def _indices(case: Case, letter: str) -> list[list[int]]:
    name, ranks = _SIZES[letter], case.ranks or 0
    length, of = int(getattr(case, name)), 2 * ranks if case.shards == "zigzag" else ranks
    words = f"{case.shards} shards of {ranks} ranks need a multiple of {of}, got {length}"
    way_out = f"for example {-(-length // of) * of}"
    refuse_if(length % of > 0, f"{flag_of(name)}: {words}", way_out)
    if case.shards == "striped":
        return [list(range(rank, length, ranks)) for rank in range(ranks)]
    parts: list[list[int]] = torch.arange(length).view(of, -1).tolist()
    if case.shards == "zigzag":
        return [parts[rank] + parts[-1 - rank] for rank in range(ranks)]
    return parts
