"""What explains the results of a sharded target's ranks: a step of a ring that is left out, doubled or another's.

What each fault would give is computed in float64 and compared with every element of a shard.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor

from ..faults.hypothesis import WrongRun
from ..model.number import LAMBDA
from ..model.report import CONSISTENT, NAMED
from .blocks import KEYS, Blocks, RankChange, Results
from .shards import TAKEN_FOR, Shards

POSITIONS = "positions"
"""The kind of fault that is all ranks' own."""
# Explanations that differ by less are as good: a few elements lie by chance where both allow.
_AS_GOOD = 0.01


@dataclass(frozen=True)
class ShardExplanation:
    """What explains one result of one shard."""

    kind: str
    words: str
    """With "{ranks}" where the rank stands that does it."""
    rank: int
    step: int | None
    name: str
    shard: int
    """Whose result it is."""
    explained: float
    wrong: int
    """How many elements."""

    @property
    def said(self) -> tuple[str, int | None, str]:
        """What is the same for one fault in several ranks and results."""
        return self.kind, self.step, self.words


def explanations(seen: WrongRun, shards: Shards) -> list[ShardExplanation]:
    """What explains the results that are wrong, of each shard: one mask of all ranks, else steps of single ones.

    Of several explanations that are as good, the one that explains most of the other shards and results.
    """
    names = [name for name in ("LSE", "O", "dQ", *KEYS) if name in seen.own]
    blocks = Blocks.of(seen, shards, names)
    if blocks is None:
        return []
    if found := list(_of_positions(blocks, names)):
        return found
    right = blocks.right()
    results = blocks.results(right, names)
    fitting = {
        key: list[ShardExplanation]()
        for key, value in results.items()
        if _is_own(blocks, key, value)
    }
    for change in chain(_misrouted(blocks, list(fitting)), blocks.changes(right, results)):
        for key in change.predicted.keys() & fitting.keys():
            hit, wrong = _score(blocks, key, change.predicted[key], change.other)
            if hit >= CONSISTENT * wrong:
                explained = ShardExplanation(
                    change.kind, change.words, change.rank, change.step, *key, hit / wrong, wrong
                )
                fitting[key].append(explained)
    best = [_best(every) for every in fitting.values() if every]
    common = Counter(one.said for every in best for one in every)
    return [max(every, key=lambda explained: common[explained.said]) for every in best]


def _best(fitting: Sequence[ShardExplanation]) -> list[ShardExplanation]:
    most = max(one.explained for one in fitting)
    return [one for one in fitting if one.explained > most - _AS_GOOD]


def _score(
    blocks: Blocks, at: tuple[str, int], predicted: Tensor, other: int | None = None
) -> tuple[int, int]:
    """How many of the wrong elements a prediction gives, less those that it spoils; and how many are wrong."""
    (name, rank), seen = at, blocks.seen
    index = blocks.at(name, rank)
    actual, expected, right = (
        seen.actual[name][index],
        seen.expected[name][index],
        seen.right[name][index],
    )
    precision, dtype = seen.measured.comparison.precision, seen.measured.trace.values[name].dtype
    unit = max(torch.finfo(dtype).eps, precision.operand, precision.matrix, precision.accumulate)
    # What a fault adds is rounded as often as the rest.
    allowed = seen.allowed[name][index] + LAMBDA * unit * (predicted - expected).abs()
    if other is not None:
        allowed = torch.maximum(allowed, seen.allowed[name][blocks.at(name, other)])
    same = ((actual - predicted).abs() <= allowed) | (actual == predicted)
    return int((same & ~right).sum()) - int((right & ~same).sum()), int((~right).sum())


def _is_own(blocks: Blocks, at: tuple[str, int], given: Tensor) -> bool:
    """Whether a result is wrong, and does not follow from what came before."""
    hit, wrong = _score(blocks, at, given)
    return wrong > 0 and hit <= CONSISTENT * wrong


def _misrouted(blocks: Blocks, wrong: Sequence[tuple[str, int]]) -> Iterator[RankChange]:
    """A rank holds the result that belongs to another."""
    for name, rank in (key for key in wrong if key[0] in ("dQ", *KEYS)):
        size = blocks.at(name, rank)[-1].shape
        for other in (
            one
            for one in range(blocks.ranks)
            if one != rank and blocks.at(name, one)[-1].shape == size
        ):
            before = (rank - other) % blocks.ranks
            which = {1: "the rank before it", blocks.ranks - 1: "the next rank"}
            words = f"{{names}} of {{ranks}} is that of {which.get(before, f'the rank {before} before it')} in the ring"
            theirs: Results = {(name, rank): blocks.seen.expected[name][blocks.at(name, other)]}
            yield RankChange("misrouted", words, rank, None, theirs, other)


def _of_positions(blocks: Blocks, names: Sequence[str]) -> Iterator[ShardExplanation]:
    """Whether the target masks as if its shards were other parts of the sequence."""
    case, ranks, held = (
        blocks.seen.case,
        blocks.ranks,
        [list(own) for own in blocks.shards.held["m"]],
    )
    length = case.seqlen_q
    if (
        not case.causal
        or length != case.seqlen_k
        or length % (2 * ranks)
        or len(held[0]) * ranks != length
    ):
        return
    for taken, way in TAKEN_FOR.items():
        if (believed := way(length, ranks)) == held:
            continue
        place = torch.empty(length, dtype=torch.long)
        place[list(chain(*held))] = torch.tensor(list(chain(*believed)))
        valid = (place[None] <= place[:, None]).to(blocks.seen.x.q.device)[None, None]
        given = blocks.results(blocks.seen_by(valid), names)
        scores = {key: _score(blocks, key, value) for key, value in given.items()}
        hit, wrong = (sum(each) for each in zip(*scores.values(), strict=True))
        if hit >= NAMED * wrong:
            words = f"the mask assumes {taken} shards, and they are {case.shards}"
            for (name, rank), (_, own) in scores.items():
                yield ShardExplanation(POSITIONS, words, rank, None, name, rank, hit / wrong, own)
            return
