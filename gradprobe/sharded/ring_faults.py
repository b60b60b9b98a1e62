"""At which rank, and in which step of a ring, a sharded target goes wrong: left out, doubled or another's.

In step s of a ring, rank r meets the keys of rank (r - s) mod n, its owner there. All results are sums over such
blocks: LSE (as the sum of exponentials), O and dQ of a rank over its steps, dK and dV of a shard over ranks. What each
fault would give is computed in float64 and compared with every element of a shard.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, product
from typing import Any

import torch
from torch import Tensor

from ..diagnosis.behaviour import observed_in
from ..diagnosis.causes import of_the_formula
from ..diagnosis.smaller import MOST_SCORES
from ..diagnosis.why import Reasons
from ..faults.hypothesis import WrongRun
from ..model.failures import own_faults
from ..model.number import LAMBDA, listed, plural
from ..model.report import CONSISTENT, NAMED, Diagnosis, causes_among
from ..numerics.evidence import LayoutRun, Steps
from ..probing.experiment import Experiment
from ..reference import Tile
from .shards import Shards, division, ranks_in_words

# Scores of one head beyond which the blocks of a problem are not tried.
_MOST = 1 << 22
# Batches and key heads that are looked at: those with the most wrong elements.
_FEW = 8
KEYS = ("dK", "dV")  # sums over ranks, of which a rank's part may lack
_LEFT_OUT = "the keys of {whose} are left out by {ranks}"
_TWICE = "the keys of {whose} are counted twice by {ranks}"
_OF_SUMS = {
    _LEFT_OUT: "of {names} in the {shards} the part of {ranks} is missing",
    _TWICE: "of {names} in the {shards} the part of {ranks} is counted twice",
}
_UNMASKED = "the keys of {whose} are all seen by {ranks}, as if no mask were there"
_STALE = "the keys of step {step} are used by {{ranks}} in place of those of {{whose}}"
# By result, what is added to it: to LSE [X, G, m], O and dQ [X, G, m, ...] of rows, dK and dV [X, n, ...] of keys.
Block = Mapping[str, Tensor]
Results = dict[tuple[str, int], Tensor]  # by result and rank, its shard


@dataclass(frozen=True)
class RankChange:
    """What one rank may do otherwise than it should, in one step or in none alone."""

    kind: str
    words: str
    rank: int
    step: int | None
    predicted: Results


@dataclass(frozen=True)
class ShardExplanation:
    change: RankChange
    name: str
    shard: int
    explained: float
    wrong: int  # how many elements of this result of this shard


class Blocks:
    """X key heads, each with the G query heads of its group, in float64: by rank and step, what is added there."""

    def __init__(
        self, seen: WrongRun, shards: Shards, names: Sequence[str], heads: Tensor
    ) -> None:
        """heads: [X], counted through all batches."""
        self.seen, self.shards, self.ranks, self._names = seen, shards, shards.ranks, names
        self._scale, self._chosen = seen.x.scale, heads
        inputs = {"q": seen.x.q, "do": seen.x.do, "dK": seen.x.k, "dV": seen.x.v}
        self._q, self._do, k, v = (self._of(name, value) for name, value in inputs.items())
        self._k, self._v = k[:, None], v[:, None]
        # Whatever could show one head other keys than another is not divided among ranks.
        self._valid = seen.x.valid(Tile(0, slice(0, 1), slice(0, self._q.shape[2])))[:1, None]
        scores = (self._scale * self._q @ self._k.mT).masked_fill(~self._valid, -torch.inf)
        self._lse = lse = scores.logsumexp(-1)
        # As the target's backward finds them: its own where it exposes them.
        computed = {"LSE": lse, "O": (scores - _finite(lse)[..., None]).exp() @ self._v}
        for name in computed.keys() & seen.actual.keys():
            computed[name] = self._of(name, seen.actual[name])
        self._own_lse, o = computed.values()
        self._delta = (self._do * o).sum(-1)
        sides = (seen.actual, seen.expected, seen.right, seen.allowed)
        self._sides = {name: [self._of(name, side[name]) for side in sides] for name in names}
        # By rank and step, the right block.
        self.right: list[list[Block]] = [[] for _ in range(self.ranks)]
        for rank, step in product(range(self.ranks), repeat=2):
            owner = self.owner(rank, step)
            self.right[rank].append(self._block(rank, self._part(rank, owner), owner))
        self.results = self._results()

    def _of(self, name: str, whole: Tensor) -> Tensor:
        """The heads that are looked at: [X, n, ...] of gradients of keys, of all else [X, G, m, ...]."""
        if name in KEYS:
            return whole.flatten(0, 1)[self._chosen]
        grouped: Tensor = whole.unflatten(1, (self.seen.x.k.shape[1], -1))
        return grouped.flatten(0, 1)[self._chosen]

    def _index(self, letter: str, rank: int) -> Tensor:
        return self.shards.index(letter, rank).to(self._lse.device)

    def owner(self, rank: int, step: int) -> int:
        return (rank - step) % self.ranks

    def shard(self, name: str, rank: int) -> Iterator[Tensor]:
        """A rank's part of what came, what is expected, whether it is right, and what is allowed."""
        letter, axis = ("n", 1) if name in KEYS else ("m", 2)
        index = self._index(letter, rank)
        return (side.index_select(axis, index) for side in self._sides[name])

    def score(self, key: tuple[str, int], predicted: Tensor) -> tuple[int, int]:
        """How many of the wrong elements a prediction gives, less those that it spoils; and how many are wrong."""
        measured, (actual, expected, right, allowed) = self.seen.measured, self.shard(*key)
        precision, dtype = measured.comparison.precision, measured.trace.values[key[0]].dtype
        units = (precision.operand, precision.matrix, precision.accumulate)
        # What a fault adds is rounded as often as the rest.
        added = LAMBDA * max(torch.finfo(dtype).eps, *units) * (predicted - expected).abs()
        near = predicted.isfinite() & ((actual - predicted).abs() <= allowed + added)
        same = near | (actual == predicted)
        return int((same & ~right).sum()) - int((right & ~same).sum()), int((~right).sum())

    def _block(self, rank: int, valid: Tensor, owner: int) -> Block:
        """What the rows of a rank give with the keys of another, where they see: [X, 1, m, n]."""
        rows = self._index("m", rank)
        whole = (self._q, self._do, self._lse, self._own_lse, self._delta)
        q, do, lse, own, delta = (each[:, :, rows] for each in whole)
        index = self._index("n", owner)
        k, v = self._k[:, :, index], self._v[:, :, index]
        scores = (self._scale * q @ k.mT).masked_fill(~valid, -torch.inf)
        of_forward, p = ((scores - _finite(each)[..., None]).exp() for each in (lse, own))
        ds = self._scale * p * (do @ v.mT - delta[..., None])
        found = {"LSE": of_forward.sum(-1), "O": of_forward @ v, "dQ": ds @ k}
        return found | {"dK": (ds.mT @ q).sum(1), "dV": (p.mT @ do).sum(1)}

    def _part(self, rank: int, owner: int) -> Tensor:
        return self._valid[..., self._index("m", rank)[:, None], self._index("n", owner)]

    def _results(self) -> Results:
        found: Results = {}
        for rank, own in enumerate(self.right):
            found |= self._of_rows(rank, own)
            # Of gradients of keys, what each rank adds to this one's.
            to_this = [own[(other - rank) % self.ranks] for other, own in enumerate(self.right)]
            found |= {(name, rank): _sum(to_this, name) for name in KEYS}
        return {key: value for key, value in found.items() if key[0] in self._names}

    def _of_rows(self, rank: int, blocks: Sequence[Block]) -> Results:
        total, o, dq = (_sum(blocks, name) for name in ("LSE", "O", "dQ"))
        lse = total.log() + _finite(self._lse[:, :, self._index("m", rank)])
        o = o / total.masked_fill(total == 0, 1.0)[..., None]
        return {("LSE", rank): lse, ("O", rank): o, ("dQ", rank): dq}

    def changes(self, wrong: Sequence[tuple[str, int]]) -> Iterator[RankChange]:
        for (name, rank), before in product(wrong, range(1, self.ranks)):
            if name in ("dQ", *KEYS):
                whose = f"the rank {plural(before, 'step')} before it in the ring"
                words = f"{{names}} of {{ranks}} is that of {whose}"
                _, theirs, *_ = self.shard(name, self.owner(rank, before))
                yield RankChange("misrouted", words, rank, None, {(name, rank): theirs})
        for rank, step in product(range(self.ranks), repeat=2):
            owner, right = self.owner(rank, step), self.right[rank]
            for kind, words, block in self._instead(rank, step):
                predicted = self._of_rows(rank, [*right[:step], block, *right[step + 1 :]])
                for name in KEYS:
                    if (key := (name, owner)) in self.results:
                        predicted[key] = self.results[key] + block[name] - right[step][name]
                yield RankChange(kind, words, rank, step, predicted)

    def _instead(self, rank: int, step: int) -> Iterator[tuple[str, str, Block]]:
        """Kind, words and block of what may stand in the place of a rank's block of one step."""
        owner, right = self.owner(rank, step), self.right[rank][step]
        valid = self._part(rank, owner)
        if bool(valid.any()):
            yield "missing-step", _LEFT_OUT, {name: 0 * value for name, value in right.items()}
            yield "twice", _TWICE, {name: 2 * value for name, value in right.items()}
        if not bool(valid.all()):
            yield "mask", _UNMASKED, self._block(rank, torch.ones_like(valid), owner)
        for other in range(self.ranks):
            if other != owner:
                words = _STALE.format(step=(rank - other) % self.ranks)
                yield "stale", words, self._block(rank, valid, other)


def _sum(blocks: Sequence[Block], name: str) -> Tensor:
    return torch.stack([block[name] for block in blocks]).sum(0)


def _finite(lse: Tensor) -> Tensor:
    return lse.masked_fill(lse == -torch.inf, 0.0)


def explanations(seen: WrongRun, shards: Shards) -> list[list[ShardExplanation]]:
    """By fault, the results that it explains, the heaviest first."""
    names = [name for name in ("LSE", "O", "dQ", *KEYS) if name in seen.own]
    heads = _worst_heads(seen, names)
    if not len(heads):
        return []
    blocks, wrong = Blocks(seen, shards, names, heads), list[tuple[str, int]]()
    for key, value in blocks.results.items():
        hit, count = blocks.score(key, value)
        if count and hit <= CONSISTENT * count:  # it does not follow from what came before
            wrong.append(key)
    best = dict[tuple[str, int], ShardExplanation]()
    for change in blocks.changes(wrong):
        for key in filter(change.predicted.__contains__, wrong):
            hit, count = blocks.score(key, change.predicted[key])
            is_better = key not in best or hit > best[key].explained * count
            if hit >= CONSISTENT * count and is_better:
                best[key] = ShardExplanation(change, *key, hit / count, count)
    groups = defaultdict[Any, list[ShardExplanation]](list)
    for one in best.values():
        groups[one.change.kind, one.change.step, one.change.words].append(one)
    return sorted(groups.values(), key=_weight, reverse=True)


def _worst_heads(seen: WrongRun, names: Sequence[str]) -> Tensor:
    """Of the key heads with the most wrong elements, counted through all batches."""
    heads = seen.x.k.shape[1]
    wrong = torch.zeros(seen.x.k.shape[:2], device=seen.x.q.device)
    for name in names:
        wrong += (~seen.right[name]).flatten(2).sum(2).unflatten(1, (heads, -1)).sum(2)
    worst = wrong.flatten().argsort(descending=True, stable=True)[:_FEW]
    return worst[wrong.flatten()[worst] > 0].sort().values


_NOTHING: tuple[Reasons, Steps] = (Reasons(), {})


def reasons_on_ranks(experiment: Experiment, runs: Sequence[LayoutRun]) -> tuple[Reasons, Steps]:
    """Why runs went wrong. What goes wrong in here is told, and no verdict depends on it."""
    wrong = [one for one in runs if one.measured and not one.measured.comparison.matches]
    failing = next(iter([run for run in wrong if run.is_plain] or wrong), None)
    if failing is None:
        return _NOTHING
    faults, found = list[str](), _NOTHING
    with own_faults(faults, "no reason could be sought"):
        found = _reasons(observed_in(experiment, failing), division(experiment.case))
    return (Reasons((), tuple(faults), sought=False), {}) if faults else found


def _reasons(seen: WrongRun, shards: Shards) -> tuple[Reasons, Steps]:
    why_not = _not_sought(seen, shards)
    found = [] if why_not else explanations(seen, shards)
    told = tuple(_diagnoses(found, shards.ranks))
    named = [one for one in chain(*found) if one.explained >= NAMED]
    if not named and seen.case.scores <= MOST_SCORES:
        # What all ranks compute alike is a fault of the formula, as anybody's.
        of_formula = of_the_formula(seen)
        told = (*of_formula, *told) if causes_among(of_formula) else (*told, *of_formula)
        why_not = "" if causes_among(told) else why_not
    steps = {(one.name, one.shard): (one.change.rank, one.change.step) for one in named}
    left = set(seen.own) - {one.name for one in named}
    facts = [*_where(seen, shards)] if left and not causes_among(told) else []
    known = (*facts, why_not) if why_not else tuple(facts)
    return Reasons(told, known, sought=not why_not), steps


def _not_sought(seen: WrongRun, shards: Shards) -> str:
    x = seen.x
    if shards.are_heads:
        return "each rank holds whole heads, so the step cannot be found"
    if x.softcap is not None or x.alibi is not None:
        return "the step can only be found without softcap and ALiBi"
    if x.q.shape[2] * x.k.shape[2] <= _MOST:
        return ""
    return (
        f"a head has more than {_MOST:,} scores, too many to find the step: try a shorter case"
    )


def _where(seen: WrongRun, shards: Shards) -> Iterator[str]:
    for name in seen.own:
        axes, wrong = seen.case.axes(name), (~seen.right[name]).nonzero()
        at = next((at for at, letter in enumerate(axes) if letter in shards.held), None)
        if at is not None:
            owners = [shards.owner(axes[at], index) for index in wrong[:, at].unique().tolist()]
            own = ranks_in_words(owner[0] for owner in owners if owner is not None)
            yield f"{name} is wrong in the shards of {own} of {shards.ranks}"


def _diagnoses(found: Sequence[Sequence[ShardExplanation]], ranks: int) -> Iterator[Diagnosis]:
    for number, group in enumerate(found):
        change, own = group[0].change, sorted({one.change.rank for one in group})
        explained = _weight(group) / sum(one.wrong for one in group)
        names = list(dict.fromkeys(one.name for one in group))
        of_shards = {one.shard for one in group}
        shards = f"shard{'s' * (len(of_shards) > 1)} of {ranks_in_words(of_shards)}"
        alone = len(own) == 1 and change.step is not None
        whose = f"rank {(change.rank - (change.step or 0)) % ranks}" if alone else "that step"
        words = change.words
        if set(names) <= set(KEYS):
            words = _OF_SUMS.get(words, words)
        named = {"whose": whose, "ranks": ranks_in_words(own), "names": listed(names)}
        words = words.format(**named, shards=shards)
        words += "" if change.step is None else f", in step {change.step} of the ring"
        share = f"explains {explained:.0%} of the wrong elements of {listed(names)}"
        evidence = (f"{share} in the {shards}; what is right stays right",)
        also = number > 0 and explained >= NAMED
        yield Diagnosis(f"ring/{change.kind}", "RING", words, explained, evidence, also=also)


def _weight(group: Sequence[ShardExplanation]) -> float:
    return sum(one.explained * one.wrong for one in group)
