"""A hypothesis tested against everything that came: which wrong elements it reproduces, which right ones it spoils."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from ..diagnosis import NAMED
from ..faults.hypothesis import EVERYTHING, Hypothesis
from ..faults.variant import BUFFERS, Variant
from ..judging.compare import BY_TILE
from ..reference import Tile, tiles
from .observed import Observed
from .prediction import Predicted, predict

if TYPE_CHECKING:
    from torch import Tensor

# The errors that a fault makes are thousands of roundings. Rounding itself is allowed four budgets here, because what a
# fault reads is of another size than what the budget was made for; verdicts are never judged by this.
ROOM = 4.0
SHARPER = 8.0
# Of a rough test, which only chooses what is tested in full: relative errors.
_ROUGH = {"float32": 1e-4, "float16": 0.02, "bfloat16": 0.1}
# What a buffer is made of: where none of it changes, its right values and a fault's own are the same.
_BEHIND = {"O": frozenset({"LSE", "P", "O"}), "delta": frozenset({"LSE", "P", "O", "dP", "delta"})}


@dataclass(frozen=True)
class Score:
    """What one prediction of one intermediate is good for."""

    reproduced: int
    """Wrong elements that it reproduces."""
    spoilt: int
    """Right elements that it would make wrong."""

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
    total: int
    """Wrong elements, in all intermediates."""
    contradicted: int
    """How many intermediates came right that the fault would have made wrong, had it stood in what computes them."""

    @property
    def explained(self) -> float:
        """The share of wrong elements reproduced, times the share of right ones that stay right where it is active."""
        reproduced = sum(score.reproduced for score in self.scores.values())
        kept = 1.0
        for name in self.active:
            kept = min(kept, 1 - self.scores[name].spoilt / max(1, self.right[name]))
        return reproduced / self.total * kept if self.total else 0.0

    def whole(self, name: str, wrong: int) -> bool:
        """Whether nearly all that is wrong in an intermediate is explained."""
        return self.scores[name].gain >= NAMED * wrong


def merged(explanations: Sequence[Explanation]) -> Explanation:
    """The best of several for each intermediate."""
    first = explanations[0]
    of = {name: [one.scores[name] for one in explanations] for name in first.scores}
    best = {name: max(scores, key=lambda score: score.gain) for name, scores in of.items()}
    active = tuple(name for name in first.scores if any(name in one.active for one in explanations))
    return Explanation(best, active, first.right, first.total, first.contradicted)


class Tester:
    """Tests hypotheses against one run."""

    def __init__(self, seen: Observed) -> None:
        self.seen = seen
        self.total = sum(seen.wrong(name) for name in seen.right)
        self._right = {name: int(right.sum()) for name, right in seen.right.items()}

    @cached_property
    def branches(self) -> tuple[Mapping[str, Tensor], ...]:
        """What kernels may have found in LSE, O and delta: what came, else the right values or the fault's own."""
        seen = self.seen
        came = {name: seen.actual[name] for name in BUFFERS if name in seen.actual}
        right = {name: seen.expected[name] for name in BUFFERS if name not in came and name in seen.expected}
        without_delta = {name: value for name, value in right.items() if name != "delta"}
        choices = {tuple(choice): {**came, **choice} for choice in (right, without_delta, {})}
        return tuple(choices.values())

    def roughly(self, *hypotheses: Hypothesis, names: Collection[str] = EVERYTHING) -> float:
        """About the share that hypotheses explain where the run first went wrong: in one key head's query heads.

        Args:
            names: the intermediates that are looked at.
        """
        here, variant = [name for name in self._here if name in names], altered(hypotheses, Variant(self.seen.x))
        if variant.finishes or variant.share is not None or not here:
            own = [name for name in self.seen.own if name in names]
            wrong = sum(self.seen.wrong(name) for name in own)
            gains = [self._gains(one, buffers, own) for one, buffers in self._ways(hypotheses, (*tiles(self.seen.x),))]
        else:
            wrong = sum(int((~self._here[name][3]).sum()) for name in here)
            gains = [self._gains_here(one, buffers, here) for one, buffers in self._ways(hypotheses, self._place[:1])]
        best = {name: max(of[name] for of in gains) for name in gains[0]}
        return sum(max(0, gain) for gain in best.values()) / max(1, wrong)

    @cached_property
    def _place(self) -> tuple[Tile, int]:
        """The first wrong key head's query heads, whole; and its number."""
        case, first = self.seen.case, self.seen.measured.first
        group = case.heads // case.kv_heads
        batch, head = (first.place.batch or 0, first.place.head) if first else (0, 0)
        own = first is not None and self.seen.case.axes(first.intermediate)[1:2] == "g"
        key_head = head if own else head // group
        return Tile(batch, slice(key_head * group, (key_head + 1) * group), slice(0, case.seqlen_q)), key_head

    def _gains_here(self, variant: Variant, buffers: Mapping[str, Tensor], names: Collection[str]) -> dict[str, int]:
        """What a prediction explains in the one place, by intermediate."""
        values, gains = variant.on(self._place[0], buffers), {}
        for name in names:
            actual, expected, allowed, right = self._here[name]
            value = values[name].sum(0) if name in ("dK", "dV") else values[name]
            bound = allowed * ROOM + self._rough * value.abs()
            gains[name] = _scored(actual, expected, allowed, right, value, bound).gain
        return gains

    def _gains(self, variant: Variant, buffers: Mapping[str, Tensor], names: Collection[str]) -> dict[str, int]:
        predicted = predict(self.seen, variant, buffers, None)
        return {name: self._score(name, predicted).gain for name in names}

    @cached_property
    def _here(self) -> dict[str, tuple[Tensor, Tensor, Tensor, Tensor]]:
        """What came in that place, was expected, is allowed and is right, of what is wrong by itself."""
        (tile, key_head), seen = self._place, self.seen
        places: dict[str, tuple[int, int | slice]] = {name: (tile.batch, tile.heads) for name in BY_TILE}
        places |= {name: (tile.batch, key_head) for name in ("dK", "dV")}
        found = {
            name: tuple(of[name][places[name]] for of in (seen.actual, seen.expected, seen.allowed, seen.right))
            for name in seen.own if name in places
        }  # fmt: skip
        return {name: parts for name, parts in found.items() if not bool(parts[3].all())}  # type: ignore[misc]

    @property
    def _rough(self) -> float:
        return _ROUGH[self.seen.case.dtype]

    def fully(self, *hypotheses: Hypothesis) -> Explanation:
        """What hypotheses explain, all at once, each wherever it may stand: in one kernel and not in another."""
        tested = sorted(self._tested(hypotheses), key=lambda one: -one.explained)
        return merged(tested)

    def _ways(
        self, hypotheses: Sequence[Hypothesis], where: Sequence[Tile]
    ) -> Iterator[tuple[Variant, Mapping[str, Tensor]]]:
        """Where faults may stand: in all that computes, with each set of buffers; or in what stored a buffer alone.

        Args:
            where: the tiles that are looked at.
        """
        right = Variant(self.seen.x)
        changes = frozenset[str]().union(*(one.changes for one in hypotheses))
        variant = altered(hypotheses, right)
        yield from ((variant, buffers) for buffers in self._branches_of(changes))
        for earlier, later in _splits(hypotheses, right):
            for stored in self._stores:
                if changes & set(stored):
                    yield later, {**self.branches[0], **self._stored(stored, earlier, where)}

    def _branches_of(self, changes: frozenset[str]) -> Sequence[Mapping[str, Tensor]]:
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

    def _stored(self, names: Sequence[str], variant: Variant, where: Sequence[Tile]) -> dict[str, Tensor]:
        """Buffers as a faulty kernel would leave them for right ones; of a forward, delta is made of them rightly."""
        whole = {name: self.seen.expected[name].clone() for name in names}
        kept = {name: value for name, value in self.branches[0].items() if name not in names}
        for tile in where:
            place, values = (tile.batch, tile.heads, tile.rows), variant.on(tile, kept)
            for name in names:
                whole[name][place] = values[name]
            if len(names) > 1:
                forward = {name: value for name, value in {**kept, **whole}.items() if name != "delta"}
                whole["delta"][place] = Variant(self.seen.x).on(tile, forward)["delta"]
        return whole

    def _tested(self, hypotheses: Sequence[Hypothesis]) -> Iterator[Explanation]:
        precision = self.seen.measured.comparison.precision
        inherited = self._of_right_arithmetic
        for variant, buffers in self._ways(hypotheses, (*tiles(self.seen.x),)):
            found = self._scores(predict(self.seen, variant, buffers, precision))
            active = tuple(
                name for name, score in found.items()
                if self.seen.wrong(name) and score.gain > max(0, inherited[name].gain)
            )  # fmt: skip
            scores = {name: found[name] if name in active else inherited[name] for name in found}
            contradicted = sum(not self.seen.wrong(name) and score.spoilt > 0 for name, score in found.items())
            yield Explanation(scores, active, self._right, self.total, contradicted)

    @cached_property
    def _of_right_arithmetic(self) -> dict[str, Score]:
        """What is explained by the LSE, O and delta that came, and no fault besides."""
        precision = self.seen.measured.comparison.precision
        found = self._scores(predict(self.seen, Variant(self.seen.x), self.branches[0], precision))
        return {name: one if one.gain > 0 else Score(0, 0) for name, one in found.items()}

    def _scores(self, predicted: Predicted) -> dict[str, Score]:
        return {name: self._score(name, predicted) for name in self.seen.actual}

    def _score(self, name: str, predicted: Predicted) -> Score:
        seen = self.seen
        of = (seen.actual[name], seen.expected[name], seen.allowed[name], seen.right[name])
        return _scored(*of, predicted.values[name], self._allowed(name, predicted))

    def _allowed(self, name: str, predicted: Predicted) -> Tensor:
        expected = predicted.values[name]
        if name in predicted.bounds:
            return ROOM * predicted.bounds[name].nan_to_num(0.0) * self._growth(name, expected)
        return ROOM * self.seen.allowed[name] + self._rough * expected.abs().nan_to_num(0.0, 0.0, 0.0)

    def _growth(self, name: str, expected: Tensor) -> float:
        """By how much larger a fault makes values than bounds were made for."""
        reference = float(self.seen.expected[name].abs().nan_to_num(0.0, 0.0, 0.0).max())
        largest = float(expected.abs().nan_to_num(0.0, 0.0, 0.0).max())
        return max(1.0, largest / reference) if reference else 1.0


def _scored(
    actual: Tensor, expected: Tensor, budget: Tensor, right: Tensor, predicted: Tensor, allowed: Tensor
) -> Score:
    """How many wrong elements a prediction reproduces, and how many right ones it spoils.

    Whatever a prediction is allowed: where it explains an error, it lies much nearer to what came than the reference.
    """
    error = (actual - predicted).abs()
    sharp = (actual - expected).abs() / SHARPER
    near = (error <= budget) | ((error <= allowed) & ~(error > sharp))
    near |= ~actual.isfinite() & ~predicted.isfinite()
    return Score(int((near & ~right).sum()), int((~near & right).sum()))


def altered(hypotheses: Sequence[Hypothesis], variant: Variant) -> Variant:
    """A variant with one fault after another."""
    for hypothesis in hypotheses:
        variant = hypothesis.alter(variant)
    return variant


def _splits(hypotheses: Sequence[Hypothesis], right: Variant) -> Iterator[tuple[Variant, Variant]]:
    """What computes a buffer and what reads it: the faults in the first alone; of two, one in each."""
    yield altered(hypotheses, right), right
    if len(hypotheses) == 2:
        one, two = hypotheses
        yield one.alter(right), two.alter(right)
        yield two.alter(right), one.alter(right)
