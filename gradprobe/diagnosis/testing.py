"""A hypothesis tested against everything that came: which wrong elements it reproduces, which right ones it spoils."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from ..faults.hypothesis import EVERYTHING, Hypothesis, Observed
from ..faults.variant import BUFFERS, Variant, seeing_all
from ..model.report import NAMED
from ..numerics.tally import Judgement
from ..reference import Tile, tiles
from ..reference.attention import BY_ROW
from .prediction import Prediction, predict

# The errors that a fault makes are thousands of roundings. Rounding itself is allowed four budgets here, because what a
# fault reads is of another size than what the budget was made for; verdicts are never judged by this.
ROOM = 4.0
SHARPER = 8.0
# Right elements of an intermediate that may be right by chance: of four numbers in a coarse arithmetic one may well be.
_BY_CHANCE = 2
# Below this no element speaks more for a prediction: a budget of 0 leaves no room at all.
_LEAST_CHANCE = 2.0**-40
# Of a rough test, which only chooses what is tested in full: relative errors.
_ROUGH = {"float32": 1e-4, "float16": 0.02, "bfloat16": 0.1}
# What a buffer is made of: where none of it changes, its right values and a fault's own are the same.
_BEHIND = {"O": frozenset({"LSE", "P", "O"}), "delta": frozenset({"LSE", "P", "O", "dP", "delta"})}

Buffers = Mapping[str, Tensor]


@dataclass(frozen=True)
class Score:
    """What one prediction of one intermediate is good for."""

    reproduced: int
    """Wrong elements that it reproduces."""
    spoilt: int
    """Right elements that it would make wrong."""
    bits: float = 0.0
    """How unlikely it is that a prediction of something else reproduces as many, as a negative logarithm to base 2."""

    @property
    def gain(self) -> int:
        return self.reproduced - self.spoilt


@dataclass(frozen=True)
class Explanation:
    """What a hypothesis explains of a run."""

    scores: Mapping[str, Score]
    """By intermediate: of the fault itself, or of right arithmetic on wrong parents, whichever is better."""
    active: tuple[str, ...]
    """The intermediates that the fault itself explains."""
    right: Mapping[str, int]
    """How many elements of each intermediate are right."""
    wrong: Mapping[str, int]
    own: tuple[str, ...]
    """The intermediates that are wrong by themselves."""
    contradicted: int = 0
    """How many intermediates came right that the fault would have made wrong, had it stood in what computes them."""

    @property
    def explained(self) -> float:
        """The share of wrong elements reproduced, times the share of right ones that stay right where it is active."""
        spoilt = {name: max(0, self.scores[name].spoilt - _BY_CHANCE) for name in self.active}
        kept = [1 - count / max(1, self.right[name]) for name, count in spoilt.items()]
        return self.reproduced * min(kept, default=1.0)

    @property
    def reproduced(self) -> float:
        """The share of wrong elements reproduced.

        Or less, the mean of that share over what is wrong by itself: three elements may be the cause of thousands.
        """
        total = sum(self.wrong.values())
        if not total:
            return 0.0
        reproduced = sum(score.reproduced for score in self.scores.values()) / total
        of_own = [self.scores[name].reproduced / self.wrong[name] for name in self.own if self.wrong[name]]
        return min(reproduced, sum(of_own) / len(of_own) if of_own else 1.0)

    @property
    def bits(self) -> float:
        """How unlikely it is that the fault itself explains what it does by chance; what is inherited says nothing."""
        return sum(self.scores[name].bits for name in self.active)

    def whole(self, name: str, wrong: int) -> bool:
        """Whether nearly all that is wrong in an intermediate is explained."""
        return self.scores[name].gain >= NAMED * wrong


def merged(explanations: Sequence[Explanation]) -> Explanation:
    """The best of several for each intermediate."""
    best, active = {}, []
    for name in explanations[0].scores:
        best[name] = max((each.scores[name] for each in explanations), key=lambda score: score.gain)
        active += [name] if any(name in each.active for each in explanations) else []
    return replace(explanations[0], scores=best, active=tuple(active))


class Tester:
    """Tests hypotheses against one run."""

    def __init__(self, seen: Observed) -> None:
        self.seen = seen
        self.wrong = {name: seen.wrong(name) for name in seen.right}
        self._right = {name: int(right.sum()) for name, right in seen.right.items()}
        self._plain = Variant(seeing_all(seen.x))

    @property
    def nothing(self) -> Explanation:
        """What explains nothing."""
        return self._explanation({name: Score(0, 0) for name in self.wrong}, ())

    def _explanation(self, scores: Mapping[str, Score], active: tuple[str, ...]) -> Explanation:
        return Explanation(scores, active, self._right, self.wrong, self.seen.own)

    def fully(self, *hypotheses: Hypothesis) -> Explanation:
        """What hypotheses explain together, each in whichever kernels explain most."""
        return merged(sorted(self._tested(hypotheses), key=lambda tested: -tested.explained))

    def _tested(self, hypotheses: Sequence[Hypothesis]) -> Iterator[Explanation]:
        inherited, not_finite = self._of_right_arithmetic, self._may_be_nan(hypotheses)
        for variant, buffers in self._ways(hypotheses, (*tiles(self.seen.x),)):
            found = self._scores(variant, buffers, not_finite)
            active = tuple(
                name for name in found if self.wrong[name] and found[name].gain > max(0, inherited[name].gain)
            )
            scores = {name: found[name] if name in active else inherited[name] for name in found}
            contradicted = sum(not self.wrong[name] and score.spoilt > 0 for name, score in found.items())
            yield replace(self._explanation(scores, active), contradicted=contradicted)
            if all(score.gain == self.wrong[name] for name, score in found.items() if self.wrong[name]):
                return  # of several ways the best is taken for each intermediate, and none is better

    @cached_property
    def _of_right_arithmetic(self) -> dict[str, Score]:
        """What is explained by the LSE, O and delta that came, and no fault besides."""
        found = self._scores(self._plain, self.branches[0], not_finite=True)
        return {name: score if score.gain > 0 else Score(0, 0) for name, score in found.items()}

    def _scores(self, variant: Variant, buffers: Buffers, not_finite: bool) -> dict[str, Score]:
        predicted = predict(self.seen, variant, buffers, self.seen.measured.comparison.precision)
        return {name: self._score(name, predicted, not_finite) for name in self.seen.actual}

    def roughly(
        self, *hypotheses: Hypothesis, names: Collection[str] = EVERYTHING, stored: bool = True
    ) -> Mapping[str, float]:
        """About the share of each intermediate that hypotheses explain where the run first went wrong.

        That is in one key head's query heads; everywhere, where a fault concerns several or nothing is wrong there.

        Args:
            names: the intermediates that are looked at.
            stored: whether also where the faults stand only in what stores a buffer.
        """
        variant, not_finite = altered(hypotheses, self._plain), self._may_be_nan(hypotheses)
        here = {name: came for name, came in self._here.items() if name in names}
        if variant.finishes or variant.share is not None or not here:
            wrong = {name: self.wrong[name] for name in self.seen.own if name in names}
            ways = self._ways(hypotheses, (*tiles(self.seen.x),), stored=stored)
            every = (predict(self.seen, way, buffers, None) for way, buffers in ways)
            gains = [{name: self._score(name, each, not_finite).gain for name in wrong} for each in every]
        else:
            wrong = {name: int((~came.right).sum()) for name, came in here.items()}
            wanted = {*here, *BUFFERS}
            ways = self._ways(hypotheses, (self._place[0],), stored=stored, wanted=wanted)
            found = (way.on(self._place[0], buffers, wanted) for way, buffers in ways)
            gains = [self._gains_here(values, here, not_finite) for values in found]
        return {name: max(0, *(of[name] for of in gains)) / count for name, count in wrong.items() if count}

    def _gains_here(
        self, values: Mapping[str, Tensor], here: Mapping[str, Judgement], not_finite: bool
    ) -> dict[str, int]:
        """What a prediction explains in the one place, by intermediate."""
        gains = {}
        for name, came in here.items():
            value = values[name].sum(0) if name in ("dK", "dV") else values[name]
            near = _near(came, value, came.bound * ROOM + self._rough * value.abs(), not_finite)
            # As many as it reproduces more than it spoils.
            gains[name] = int(near.sum()) - int(came.right.sum())
        return gains

    def shows(self, names: Collection[str]) -> bool:
        """Whether any of some intermediates is wrong by itself where the run first went wrong."""
        return any(name in self._here for name in names)

    def share(self, rough: Mapping[str, float], names: Collection[str] = EVERYTHING) -> float:
        """The mean share over some intermediates, without those whose errors are only inherited."""
        known = [name for name in rough if name in names and self._inherited_roughly.get(name, 0.0) < NAMED]
        return sum(rough[name] for name in known) / max(1, len(known))

    @cached_property
    def _inherited_roughly(self) -> Mapping[str, float]:
        return self.roughly()

    @cached_property
    def _place(self) -> tuple[Tile, int]:
        """The first wrong key head's query heads, whole; and its number."""
        case, first = self.seen.case, self.seen.measured.first
        group = case.heads // case.kv_heads
        batch, head = (first.batch or 0, first.head or 0) if first else (0, 0)
        own = first is not None and case.axes(first.intermediate)[1:2] == "g"
        key_head = head if own else head // group
        return Tile(batch, slice(key_head * group, (key_head + 1) * group), slice(0, case.seqlen_q)), key_head

    @cached_property
    def _here(self) -> dict[str, Judgement]:
        """What came in that place of each intermediate that is wrong by itself."""
        tile, key_head = self._place
        places: dict[str, tuple[int, int | slice]] = dict.fromkeys(BY_ROW, (tile.batch, tile.heads))
        places |= dict.fromkeys(("dK", "dV"), (tile.batch, key_head))
        found = {name: self._judgement(name, places[name]) for name in self.seen.own if name in places}
        return {name: came for name, came in found.items() if not bool(came.right.all())}

    def _judgement(self, name: str, place: tuple[int | slice, ...] = ()) -> Judgement:
        seen = self.seen
        return Judgement(*(of[name][place] for of in (seen.actual, seen.expected, seen.allowed, seen.right)))

    @property
    def _rough(self) -> float:
        return _ROUGH[self.seen.case.dtype]

    @cached_property
    def branches(self) -> tuple[Buffers, ...]:
        """What kernels may have found in LSE, O and delta: what came, else the right values or the fault's own."""
        seen = self.seen
        came = {name: seen.actual[name] for name in BUFFERS if name in seen.actual}
        right = {name: seen.expected[name] for name in BUFFERS if name not in came and name in seen.expected}
        without_delta = {name: value for name, value in right.items() if name != "delta"}
        choices = {tuple(choice): {**came, **choice} for choice in (right, without_delta, {})}
        return tuple(choices.values())

    def _ways(
        self,
        hypotheses: Sequence[Hypothesis],
        where: Sequence[Tile],
        *,
        stored: bool = True,
        wanted: Collection[str] | None = None,
    ) -> Iterator[tuple[Variant, Buffers]]:
        """Where faults may stand: in all that computes, with each set of buffers; or in what stored a buffer alone.

        Args:
            where: the tiles that are looked at.
            stored: whether in a buffer alone, too.
            wanted: from `reference.evaluate`, where each way is evaluated on these tiles.
        """
        changes = frozenset[str]().union(*(each.changes for each in hypotheses))
        variant = altered(hypotheses, self._plain)
        variant = variant if wanted is None else variant.remembering()
        yield from ((variant, buffers) for buffers in self._branches_of(changes))
        for earlier, later in _splits(hypotheses, variant, self._plain):
            for names in self._stores if stored else ():
                if changes & set(names):
                    yield later, {**self.branches[0], **self._stored(names, earlier, where, wanted or BUFFERS)}

    def _branches_of(self, changes: frozenset[str]) -> Sequence[Buffers]:
        """The sets of buffers that differ for faults in these intermediates."""
        if not changes & _BEHIND["delta"]:
            return self.branches[:1]
        return self.branches if changes & _BEHIND["O"] else self.branches[:2]

    @cached_property
    def _stores(self) -> tuple[tuple[str, ...], ...]:
        """What one kernel may have stored wrongly for others, of what the target does not expose."""
        hidden = tuple(name for name in BUFFERS if name not in self.seen.actual)
        alone = tuple((name,) for name in ("LSE", "delta") if name in hidden)
        return (*alone, hidden) if {"LSE", "O"} & set(hidden) and "delta" in hidden else alone

    def _stored(
        self, names: Sequence[str], variant: Variant, where: Sequence[Tile], wanted: Collection[str]
    ) -> dict[str, Tensor]:
        """Buffers as a faulty kernel would leave them for right ones; of a forward, delta is made of them rightly."""
        whole = {name: self.seen.expected[name].clone() for name in names}
        kept = {name: value for name, value in self.branches[0].items() if name not in names}
        for tile in where:
            place, values = (tile.batch, tile.heads, tile.rows), variant.on(tile, kept, wanted)
            for name in names:
                whole[name][place] = values[name]
            if len(names) > 1:
                forward = {name: value for name, value in {**kept, **whole}.items() if name != "delta"}
                whole["delta"][place] = self._plain.on(tile, forward, BUFFERS)["delta"]
        return whole

    def _may_be_nan(self, hypotheses: Sequence[Hypothesis]) -> bool:
        """Whether NaN is evidence for hypotheses: all of them make NaN, and some intermediate holds NaN and numbers."""
        return self._has_shape_of_nan and all(each.not_finite for each in hypotheses)

    @cached_property
    def _has_shape_of_nan(self) -> bool:
        of = ((value.isfinite(), self.seen.right[name]) for name, value in self.seen.actual.items())
        return any(bool(finite.any()) and not bool((finite | right).all()) for finite, right in of)

    def _score(self, name: str, predicted: Prediction, not_finite: bool) -> Score:
        """How many wrong elements a prediction reproduces, and how many right ones it spoils."""
        came, value = self._judgement(name), predicted.values[name]
        allowed = self._allowed(name, predicted)
        near, off = _near(came, value, allowed, not_finite), (came.actual - came.expected).abs()
        room = came.bound.maximum(allowed.minimum(off / SHARPER))
        # A 0 is reproduced by a 0, and not by a number whose own bound is so wide that it takes in 0.
        reproduced = near & ~came.right & ~((came.actual == 0) & (value.abs() > room))
        # All of a head exactly 0 is no small number: only what gives 0 explains that.
        flushed = value.abs() <= torch.finfo(self.seen.measured.trace.values[name].dtype).tiny
        reproduced &= flushed | ~_is_nothing(came.actual)
        # A NaN is one of two, and so is a 0: nothing flows for many reasons.
        plain = off.isfinite() & (value.abs() > room)
        bits = _bits(room[reproduced], off.masked_fill(~plain, 0.0)[reproduced])
        return Score(int(reproduced.sum()), int((~near & came.right).sum()), bits)

    def _allowed(self, name: str, predicted: Prediction) -> Tensor:
        expected = predicted.values[name]
        if name not in predicted.bounds:
            return ROOM * self.seen.allowed[name] + self._rough * expected.abs().nan_to_num(0.0, 0.0, 0.0)
        # A fault makes values larger than bounds were made for.
        reference, largest = (
            float(of.abs().nan_to_num(0.0, 0.0, 0.0).max()) for of in (self.seen.expected[name], expected)
        )
        growth = max(1.0, largest / reference) if reference else 1.0
        return ROOM * predicted.bounds[name].nan_to_num(0.0) * growth


def _is_nothing(actual: Tensor) -> Tensor:
    """Where all of a head is exactly 0."""
    rest = tuple(range(min(2, actual.dim()), actual.dim()))
    return ~(actual != 0).any(rest, keepdim=True) if rest else actual == 0


def _near(came: Judgement, predicted: Tensor, allowed: Tensor, not_finite: bool) -> Tensor:
    """Which elements are what a prediction says.

    Whatever a prediction is allowed: where it explains an error, it lies much nearer to what came than the reference.
    A NaN spreads, and anything that goes wrong makes one: it counts only for a fault that is known to make them.
    """
    actual, expected = came.actual, came.expected
    error, sharp = (actual - predicted).abs(), (actual - expected).abs() / SHARPER
    near = (actual == predicted) | (error <= came.bound) | ((error <= allowed) & ~(error > sharp))
    near |= ~actual.isfinite() & ~predicted.isfinite() & (predicted != expected) if not_finite else False
    return near


def _bits(room: Tensor, off: Tensor) -> float:
    """How unlikely it is that predictions of something else, off by up to as much, lie as near; 1 where `off` is 0."""
    chance = (room / off).masked_fill(off == 0, 0.5).clamp(_LEAST_CHANCE, 1.0)
    return float(-chance.log2().sum())


def altered(hypotheses: Sequence[Hypothesis], variant: Variant) -> Variant:
    """A variant with one fault after another."""
    for hypothesis in hypotheses:
        variant = hypothesis.alter(variant)
    return variant


def _splits(hypotheses: Sequence[Hypothesis], variant: Variant, right: Variant) -> Iterator[tuple[Variant, Variant]]:
    """What computes a buffer and what reads it: the faults in the first alone; of two, one in each."""
    yield variant, right
    if len(hypotheses) == 2:
        first, second = (each.alter(right) for each in hypotheses)
        yield first, second
        yield second, first
