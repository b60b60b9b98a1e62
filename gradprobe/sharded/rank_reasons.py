"""At which rank, and in which step of a ring, a sharded target goes wrong: left out, doubled or another's.

What each fault would give is computed in float64 and compared with every element of a shard.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from ..diagnosis.behaviour import observed_in
from ..diagnosis.causes import of_the_formula
from ..diagnosis.smaller import MOST_SCORES
from ..diagnosis.why import Reasons
from ..faults.hypothesis import WrongRun
from ..model.failures import fault_words
from ..model.mechanisms import door
from ..model.number import LAMBDA, listed
from ..model.report import CONSISTENT, NAMED, Diagnosis, causes_among
from ..numerics.evidence import LayoutRun, Steps
from ..probing.experiment import Experiment
from .blocks import KEYS, Blocks, RankChange, Results
from .shards import TAKEN_FOR, Shards, division, ranks_in_words

# Scores of one head beyond which the blocks of a problem are not tried on a CPU, and on a GPU.
_MOST, _MOST_ON_GPU = 1 << 22, 1 << 26
# What lacks of gradients of keys alone is a rank's part of a sum.
_OF_SUMS = {
    "missing-step": "of {names} in the {shards} the part of {ranks} is missing",
    "twice": "of {names} in the {shards} the part of {ranks} is counted twice",
}
POSITIONS = "positions"
"""The kind of fault that is all ranks' own."""
# Explanations that differ by less are as good: a few elements lie by chance where both allow.
_AS_GOOD = 0.01


@dataclass(frozen=True)
class ShardExplanation:
    """What explains one result of one shard."""

    change: RankChange
    name: str
    shard: int
    """Whose result it is."""
    explained: float
    wrong: int
    """How many elements."""

    @property
    def said(self) -> tuple[str, int | None, str]:
        """What is the same for one fault in several ranks and results."""
        return self.change.kind, self.change.step, self.change.words


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
    fitting = dict[tuple[str, int], list[ShardExplanation]]()
    for key, value in results.items():
        hit, wrong = _score(blocks, key, value)
        if wrong and hit <= CONSISTENT * wrong:  # it does not follow from what came before
            fitting[key] = []
    for change in chain(_misrouted(blocks, list(fitting)), blocks.changes(right, results)):
        for key in change.predicted.keys() & fitting.keys():
            hit, wrong = _score(blocks, key, change.predicted[key], change.other)
            if hit >= CONSISTENT * wrong:
                fitting[key].append(ShardExplanation(change, *key, hit / wrong, wrong))
    best, common = list[list[ShardExplanation]](), Counter[Any]()
    for every in filter(None, fitting.values()):
        most = max(one.explained for one in every)
        best.append([one for one in every if one.explained > most - _AS_GOOD])
        common.update(one.said for one in best[-1])
    return [max(every, key=lambda explained: common[explained.said]) for every in best]


def _score(
    blocks: Blocks, at: tuple[str, int], predicted: Tensor, other: int | None = None
) -> tuple[int, int]:
    """How many of the wrong elements a prediction gives, less those that it spoils; and how many are wrong."""
    (name, rank), seen = at, blocks.seen
    index = blocks.at(name, rank)
    sides = (seen.actual, seen.expected, seen.right)
    actual, expected, right = (side[name][index] for side in sides)
    precision, dtype = seen.measured.comparison.precision, seen.measured.trace.values[name].dtype
    unit = max(torch.finfo(dtype).eps, precision.operand, precision.matrix, precision.accumulate)
    # What a fault adds is rounded as often as the rest.
    allowed = seen.allowed[name][index] + LAMBDA * unit * (predicted - expected).abs()
    if other is not None:
        allowed = torch.maximum(allowed, seen.allowed[name][blocks.at(name, other)])
    same = ((actual - predicted).abs() <= allowed) | (actual == predicted)
    return int((same & ~right).sum()) - int((right & ~same).sum()), int((~right).sum())


def _misrouted(blocks: Blocks, wrong: Sequence[tuple[str, int]]) -> Iterator[RankChange]:
    ranks = blocks.ranks
    for name, rank in wrong:
        for other in range(ranks) if name in ("dQ", *KEYS) else ():
            theirs = blocks.at(name, other)
            if other == rank or theirs[-1].shape != blocks.at(name, rank)[-1].shape:
                continue
            before = (rank - other) % ranks
            which = {1: "the rank before it", ranks - 1: "the next rank"}
            whose = which.get(before, f"the rank {before} before it")
            words = f"{{names}} of {{ranks}} is that of {whose} in the ring"
            predicted: Results = {(name, rank): blocks.seen.expected[name][theirs]}
            yield RankChange("misrouted", words, rank, None, predicted, other)


def _of_positions(blocks: Blocks, names: Sequence[str]) -> Iterator[ShardExplanation]:
    """Whether the target masks as if its shards were other parts of the sequence."""
    case, ranks = blocks.seen.case, blocks.ranks
    held, length = [list(own) for own in blocks.shards.held["m"]], case.seqlen_q
    is_even = length % (2 * ranks) == 0 and len(held[0]) * ranks == length
    if not case.causal or length != case.seqlen_k or not is_even:
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
                change = RankChange(POSITIONS, words, rank, None, {})
                yield ShardExplanation(change, name, rank, hit / wrong, own)
            return


_NOTHING: tuple[Reasons, Steps] = (Reasons(), {})


@door("ranks", lambda *args: _NOTHING)
def reasons_on_ranks(experiment: Experiment, runs: Sequence[LayoutRun]) -> tuple[Reasons, Steps]:
    """Why runs with a wrong element went wrong. What goes wrong in here is told, and no verdict depends on it."""
    wrong = [one for one in runs if one.measured and not one.measured.comparison.matches]
    failing = [run for run in wrong if run.is_plain] or wrong
    if not failing:
        return _NOTHING
    try:
        return _reasons(observed_in(experiment, failing[0]), division(experiment.case))
    except Exception as error:
        words = f"no reason could be sought, by a fault of gradprobe: {fault_words(error)}"
        return Reasons((), (words,), sought=False), {}


def _reasons(seen: WrongRun, shards: Shards) -> tuple[Reasons, Steps]:
    why_not = _not_sought(seen, shards)
    found = [] if why_not else explanations(seen, shards)
    told = tuple(_diagnoses(found, shards.ranks))
    named = [one for one in found if one.explained >= NAMED]
    if not named and seen.case.scores <= MOST_SCORES:
        # What all ranks compute alike is a fault of the formula, as anybody's.
        of_formula = of_the_formula(seen)
        told = (*of_formula, *told) if causes_among(of_formula) else (*told, *of_formula)
        why_not = "" if causes_among(told) else why_not
    # What all ranks do alike is no rank's own fault.
    own = [one for one in named if one.change.kind != POSITIONS]
    steps = {(one.name, one.shard): (one.change.rank, one.change.step) for one in own}
    left = set(seen.own) - {one.name for one in named}
    facts = _where(seen, shards) if left and not causes_among(told) else ()
    return Reasons(told, (*facts, *filter(None, [why_not])), sought=not why_not), steps


def _not_sought(seen: WrongRun, shards: Shards) -> str:
    x, most = seen.x, _MOST_ON_GPU if seen.x.q.is_cuda else _MOST
    if shards.are_heads:
        return "each rank holds whole heads, so the step cannot be found"
    if x.softcap is not None or x.alibi is not None:
        return "the step can only be found without softcap and ALiBi"
    if x.q.shape[2] * x.k.shape[2] > most:
        words = f"a head has more than {most:,} scores, too many to find the step"
        return f"{words}: try a shorter case"
    return ""


def _where(seen: WrongRun, shards: Shards) -> Iterator[str]:
    """In the shards of which ranks each intermediate is wrong by itself."""
    for name in seen.own:
        axes, wrong = seen.case.axes(name), (~seen.right[name]).nonzero()
        at = next((at for at, letter in enumerate(axes) if letter in shards.held), None)
        if at is not None:
            owners = [shards.owner(axes[at], index) for index in wrong[:, at].unique().tolist()]
            ranks = sorted({owner[0] for owner in owners if owner is not None})
            yield f"{name} is wrong in the {_shards(ranks)} of {shards.ranks}"


def _shards(ranks: Sequence[int]) -> str:
    return f"shard{'s' if len(ranks) > 1 else ''} of {ranks_in_words(ranks)}"


def _diagnoses(found: Sequence[ShardExplanation], ranks: int) -> Iterator[Diagnosis]:
    """A diagnosis of each fault; of several ranks that do the same, or of several results that show it, one."""
    groups: dict[tuple[str, int | None, str], list[ShardExplanation]] = {}
    for one in found:
        groups.setdefault(one.said, []).append(one)
    for number, group in enumerate(sorted(groups.values(), key=_weight, reverse=True)):
        change, own = group[0].change, sorted({one.change.rank for one in group})
        explained = _weight(group) / sum(one.wrong for one in group)
        names = list(dict.fromkeys(one.name for one in group))
        shards = _shards(sorted({one.shard for one in group}))
        alone = len(own) == 1 and change.step is not None
        whose = f"rank {(change.rank - (change.step or 0)) % ranks}" if alone else "that step"
        words = change.words
        if set(names) <= set(KEYS):
            words = _OF_SUMS.get(change.kind, words)
        them = {"whose": whose, "ranks": ranks_in_words(own), "names": listed(names)}
        words = words.format(**them, shards=shards)
        words += "" if change.step is None else f", in step {change.step} of the ring"
        share = f"explains {explained:.0%} of the wrong elements of {listed(names)}"
        evidence = (f"{share} in the {shards}; what is right stays right",)
        also = number > 0 and explained >= NAMED
        kind = f"ring/{change.kind}"
        yield Diagnosis(kind, "RING", words, explained, evidence, also=also)


def _weight(group: Sequence[ShardExplanation]) -> float:
    return sum(one.explained * one.wrong for one in group)
