"""At which rank, and in which step of a ring, a sharded target goes wrong: left out, doubled or another's.

In step s of a ring, rank r meets the keys of rank (r - s) mod n, its owner there. All results are sums over such
blocks: LSE (as the sum of exponentials), O and dQ of a rank over its steps, dK and dV of a shard over ranks. What each
fault would give is computed in float64 and compared with every element of a shard.
"""

from __future__ import annotations

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
from ..model.mechanisms import door
from ..model.number import LAMBDA, listed
from ..model.report import CONSISTENT, NAMED, Diagnosis, causes_among
from ..numerics.evidence import LayoutRun, Steps
from ..probing.experiment import Experiment
from ..reference import Tile
from .shards import TAKEN_FOR, Shards, division, ranks_in_words

# Scores of one head beyond which the blocks of a problem are not tried on a CPU, and on a GPU.
_MOST, _MOST_ON_GPU = 1 << 22, 1 << 26
# Batches and key heads that are looked at: those with the most wrong elements.
_FEW = 8
# Explanations that differ by less are as good: a few elements lie by chance where both allow.
_AS_GOOD = 0.01
POSITIONS = "positions"  # the kind of fault that is all ranks' own
KEYS = ("dK", "dV")  # sums over ranks, of which a rank's part may lack
_OF_SUMS = {
    "missing-step": "of {names} in the {shards} the part of {ranks} is missing",
    "twice": "of {names} in the {shards} the part of {ranks} is counted twice",
}
_LEFT_OUT = "the keys of {whose} are left out by {ranks}"
_TWICE = "the keys of {whose} are counted twice by {ranks}"
_UNMASKED = "the keys of {whose} are all seen by {ranks}, as if no mask were there"
_BY_PLACE = "the keys of {whose} are masked by {ranks} by their places in the shard"
_STALE = "the {what} of step {step} are used by {{ranks}} in place of those of {{whose}}"
_UNSCALED = "what came before is added to O by {ranks} without being scaled to the new LSE"
# By result, what is added to it: to LSE [X, G, m], O and dQ [X, G, m, ...] of rows, dK and dV [X, n, ...] of keys.
Block = Mapping[str, Tensor]
Results = dict[tuple[str, int], Tensor]  # by result and rank, its shard


@dataclass(frozen=True)
class RankChange:
    """What one rank may do otherwise than it should, in one step or in none alone; and what results would be."""

    kind: str
    words: str
    rank: int
    step: int | None
    predicted: Results


@dataclass(frozen=True)
class ShardExplanation:
    """What explains one result of one shard, and how many elements of it are wrong."""

    change: RankChange
    name: str
    shard: int
    explained: float
    wrong: int


class Blocks:
    """X key heads, each with the G query heads of its group, in float64: by rank and step, what is added there."""

    def __init__(
        self, seen: WrongRun, shards: Shards, names: Sequence[str], heads: Tensor
    ) -> None:
        """heads: [X] the numbers of key heads, counted through all batches."""
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
        own = {
            name: self._of(name, seen.actual[name]) for name in computed if name in seen.actual
        }
        self._own_lse, o = (computed | own).values()
        self._delta = (self._do * o).sum(-1)
        sides = (seen.actual, seen.expected, seen.right, seen.allowed)
        self._sides = {name: [self._of(name, side[name]) for side in sides] for name in names}
        self.right = self._seen_by(self._valid)
        self.results = self._results(self.right)

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
        """A rank's part of what came of a result, what is expected, whether it is right, and what is allowed."""
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
        same = ((actual - predicted).abs() <= allowed + added) | (actual == predicted)
        return int((same & ~right).sum()) - int((right & ~same).sum()), int((~right).sum())

    def _block(self, rank: int, valid: Tensor, keys: int, values: int) -> Block:
        """What the rows of a rank give with the keys of one and the values of another, where they see: [X, 1, m, n]."""
        rows = self._index("m", rank)
        whole = (self._q, self._do, self._lse, self._own_lse, self._delta)
        q, do, lse, own, delta = (each[:, :, rows] for each in whole)
        k, v = self._k[:, :, self._index("n", keys)], self._v[:, :, self._index("n", values)]
        scores = (self._scale * q @ k.mT).masked_fill(~valid, -torch.inf)
        of_forward, p = ((scores - _finite(each)[..., None]).exp() for each in (lse, own))
        ds = self._scale * p * (do @ v.mT - delta[..., None])
        found = {"LSE": of_forward.sum(-1), "O": of_forward @ v, "dQ": ds @ k}
        return found | {"dK": (ds.mT @ q).sum(1), "dV": (p.mT @ do).sum(1)}

    def _part(self, valid: Tensor, rank: int, owner: int) -> Tensor:
        return valid[..., self._index("m", rank)[:, None], self._index("n", owner)]

    def _seen_by(self, valid: Tensor) -> list[list[Block]]:
        """By rank and step, the block where rows see keys so: [X or 1, 1, M, N] of the whole."""
        found: list[list[Block]] = [[] for _ in range(self.ranks)]
        for rank, step in product(range(self.ranks), repeat=2):
            owner = self.owner(rank, step)
            found[rank].append(self._block(rank, self._part(valid, rank, owner), owner, owner))
        return found

    def _results(self, blocks: Sequence[Sequence[Block]]) -> Results:
        found: Results = {}
        for rank, own in enumerate(blocks):
            found |= self._of_rows(rank, own)
            # Of gradients of keys, what each rank adds to this one's.
            to_this = [own[(other - rank) % self.ranks] for other, own in enumerate(blocks)]
            found |= {(name, rank): _sum(to_this, name) for name in KEYS}
        return {key: value for key, value in found.items() if key[0] in self._names}

    def _of_rows(self, rank: int, blocks: Sequence[Block]) -> Results:
        total, o, dq = (_sum(blocks, name) for name in ("LSE", "O", "dQ"))
        lse = total.log() + _finite(self._lse[:, :, self._index("m", rank)])
        o = o / total.masked_fill(total == 0, 1.0)[..., None]
        return {("LSE", rank): lse, ("O", rank): o, ("dQ", rank): dq}

    def of_positions(self) -> Iterator[ShardExplanation]:
        """Whether the target masks as if its shards were other parts of the sequence."""
        case, ranks = self.seen.case, self.ranks
        held, length = [list(own) for own in self.shards.held["m"]], case.seqlen_q
        is_even = length % (2 * ranks) == 0 and len(held[0]) * ranks == length
        for taken, way in TAKEN_FOR.items():
            if not case.causal or length != case.seqlen_k or not is_even:
                return
            if (positions := way(length, ranks)) == held:
                continue
            place = torch.empty(length, dtype=torch.long)
            place[list(chain(*held))] = torch.tensor(list(chain(*positions)))
            valid = (place[None] <= place[:, None]).to(self._lse.device)[None, None]
            given = self._results(self._seen_by(valid))
            scores = {key: self.score(key, value) for key, value in given.items()}
            hit, wrong = (sum(each) for each in zip(*scores.values(), strict=True))
            if hit >= NAMED * wrong:
                words = f"the mask assumes {taken} shards, and they are {case.shards}"
                for (name, rank), (_, own) in scores.items():
                    change = RankChange(POSITIONS, words, rank, None, {})
                    yield ShardExplanation(change, name, rank, hit / wrong, own)
                return

    def changes(self, wrong: Sequence[tuple[str, int]]) -> Iterator[RankChange]:
        """What may have come of another rank, gone wrong in one step, or in putting the steps together."""
        for name, rank in wrong:
            if name in ("dQ", *KEYS):
                yield from self._misrouted(name, rank)
        for rank in range(self.ranks):
            for step in range(self.ranks):
                owner, right = self.owner(rank, step), self.right[rank]
                for kind, words, block in self._instead(rank, step):
                    predicted = self._of_rows(rank, [*right[:step], block, *right[step + 1 :]])
                    for name in KEYS:
                        if (key := (name, owner)) in self.results:
                            predicted[key] = self.results[key] + block[name] - right[step][name]
                    yield RankChange(kind, words, rank, step, predicted)
            yield from self._of_merging(rank)

    def _misrouted(self, name: str, rank: int) -> Iterator[RankChange]:
        for before in range(1, self.ranks):
            which = {1: "the rank before it", self.ranks - 1: "the next rank"}
            whose = which.get(before, f"the rank {before} before it")
            words = f"{{names}} of {{ranks}} is that of {whose} in the ring"
            _, theirs, *_ = self.shard(name, self.owner(rank, before))
            yield RankChange("misrouted", words, rank, None, {(name, rank): theirs})

    def _instead(self, rank: int, step: int) -> Iterator[tuple[str, str, Block]]:
        """The kind and words of what may stand in the place of a rank's block of one step, and itself."""
        owner, right = self.owner(rank, step), self.right[rank][step]
        valid = self._part(self._valid, rank, owner)
        rows, keys = (torch.arange(size, device=valid.device) for size in valid.shape[-2:])
        if bool(valid.any()):
            yield "missing-step", _LEFT_OUT, {name: 0 * value for name, value in right.items()}
            yield "twice", _TWICE, {name: 2 * value for name, value in right.items()}
        ways = {_UNMASKED: torch.ones_like(valid)}
        ways[_BY_PLACE] = (keys <= rows[:, None]).expand_as(valid)
        ways[f"{_BY_PLACE}, the diagonal too"] = (keys < rows[:, None]).expand_as(valid)
        for words, seen in ways.items():
            if not torch.equal(seen, valid):
                yield "mask", words, self._block(rank, seen, owner, owner)
        for of in range(self.ranks):
            if of != owner:
                stale = {"keys and values": (of, of), "keys": (of, owner), "values": (owner, of)}
                for what, each in stale.items():
                    words = _STALE.format(what=what, step=(rank - of) % self.ranks)
                    yield "stale", words, self._block(rank, valid, *each)

    def _of_merging(self, rank: int) -> Iterator[RankChange]:
        """The parts of the steps before one are not scaled to the new maximum, in one step or in all."""
        right, steps = self.right[rank], range(1, self.ranks)
        so_far = torch.stack([block["LSE"] for block in right]).cumsum(0)
        grown = (so_far[1:] / so_far[:-1]).nan_to_num(0.0, 0.0, 0.0)[..., None]
        for alone in (*steps, None):
            blocks = [dict(block) for block in right]
            for step in steps if alone is None else [alone]:
                for block in blocks[:step]:
                    block["O"] = block["O"] * grown[step - 1]
            o = {("O", rank): self._of_rows(rank, blocks)["O", rank]}
            words = _UNSCALED + (", in every step" if alone is None else "")
            yield RankChange("rescale", words, rank, alone, o)


def _sum(blocks: Sequence[Block], name: str) -> Tensor:
    return torch.stack([block[name] for block in blocks]).sum(0)


def _finite(lse: Tensor) -> Tensor:
    return lse.masked_fill(lse == -torch.inf, 0.0)


def explanations(seen: WrongRun, shards: Shards) -> list[list[ShardExplanation]]:
    """By fault, the results that it explains: one mask of all ranks, else steps of single ones, the heaviest first."""
    names = [name for name in ("LSE", "O", "dQ", *KEYS) if name in seen.own]
    heads = _worst_heads(seen, names)
    if not len(heads):
        return []
    blocks = Blocks(seen, shards, names, heads)
    if found := list(blocks.of_positions()):
        return [found]
    fitting = dict[tuple[str, int], list[ShardExplanation]]()
    for key, value in blocks.results.items():
        hit, wrong = blocks.score(key, value)
        if wrong and hit <= CONSISTENT * wrong:  # it does not follow from what came before
            fitting[key] = []
    for change in blocks.changes(list(fitting)):
        for key in change.predicted.keys() & fitting.keys():
            hit, wrong = blocks.score(key, change.predicted[key])
            if hit >= CONSISTENT * wrong:
                fitting[key].append(ShardExplanation(change, *key, hit / wrong, wrong))
    return list(_by_fault(fitting))


def _by_fault(
    fitting: Mapping[tuple[str, int], Sequence[ShardExplanation]],
) -> Iterator[list[ShardExplanation]]:
    """Each result by the fault that explains most, of several that explain it as well."""
    faults = defaultdict[Any, list[ShardExplanation]](list)
    for every in filter(None, fitting.values()):
        most = max(one.explained for one in every)
        for one in every:
            if one.explained > most - _AS_GOOD:
                faults[one.change.kind, one.change.step, one.change.words].append(one)
    while group := max(faults.values(), key=_weight, default=None):
        yield list(group)
        explained = {(one.name, one.shard) for one in group}
        for fault, every in [*faults.items()]:
            faults[fault] = [one for one in every if (one.name, one.shard) not in explained]


def _worst_heads(seen: WrongRun, names: Sequence[str]) -> Tensor:
    """The numbers of the key heads with the most wrong elements, counted through all batches."""
    heads = seen.x.k.shape[1]
    wrong = torch.zeros(seen.x.k.shape[:2], device=seen.x.q.device)
    for name in names:
        wrong += (~seen.right[name]).flatten(2).sum(2).unflatten(1, (heads, -1)).sum(2)
    worst = wrong.flatten().argsort(descending=True, stable=True)[:_FEW]
    return worst[wrong.flatten()[worst] > 0].sort().values


_NOTHING: tuple[Reasons, Steps] = (Reasons(), {})


@door("ranks", lambda *args: _NOTHING)
def reasons_on_ranks(experiment: Experiment, runs: Sequence[LayoutRun]) -> tuple[Reasons, Steps]:
    """Why runs with a wrong element went wrong. What goes wrong in here is told, and no verdict depends on it."""
    wrong = [one for one in runs if one.measured and not one.measured.comparison.matches]
    failing = [run for run in wrong if run.is_plain] or wrong
    if not failing:
        return _NOTHING
    faults, found = list[str](), _NOTHING
    with own_faults(faults, "no reason could be sought"):
        found = _reasons(observed_in(experiment, failing[0]), division(experiment.case))
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
    # What all ranks do alike is no rank's own fault.
    own = [one for one in named if one.change.kind != POSITIONS]
    steps = {(one.name, one.shard): (one.change.rank, one.change.step) for one in own}
    left = set(seen.own) - {one.name for one in named}
    facts = [*_where(seen, shards)] if left and not causes_among(told) else []
    known = (*facts, why_not) if why_not else tuple(facts)
    return Reasons(told, known, sought=not why_not), steps


def _not_sought(seen: WrongRun, shards: Shards) -> str:
    x, most = seen.x, _MOST_ON_GPU if seen.x.q.is_cuda else _MOST
    if shards.are_heads:
        return "each rank holds whole heads, so the step cannot be found"
    if x.softcap is not None or x.alibi is not None:
        return "the step can only be found without softcap and ALiBi"
    if x.q.shape[2] * x.k.shape[2] > most:
        return f"a head has more than {most:,} scores, too many to find the step: try a shorter case"
    return ""


def _where(seen: WrongRun, shards: Shards) -> Iterator[str]:
    """In the shards of which ranks each intermediate is wrong by itself."""
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
            words = _OF_SUMS.get(change.kind, words)
        them = {"whose": whose, "ranks": ranks_in_words(own), "names": listed(names)}
        words = words.format(**them, shards=shards)
        words += "" if change.step is None else f", in step {change.step} of the ring"
        share = f"explains {explained:.0%} of the wrong elements of {listed(names)}"
        evidence = (f"{share} in the {shards}; what is right stays right",)
        also = number > 0 and explained >= NAMED
        yield Diagnosis(f"ring/{change.kind}", "RING", words, explained, evidence, also=also)


def _weight(group: Sequence[ShardExplanation]) -> float:
    return sum(one.explained * one.wrong for one in group)
