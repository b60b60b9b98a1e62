"""Hypotheses held against a run."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter, itemgetter
from typing import NamedTuple

import torch
from torch import Tensor

from ..faults.hypothesis import Hypothesis, WrongRun
from ..faults.index import readable
from ..faults.table import hypotheses
from ..faults.variant import BUFFERS, Variant, plain_variant
from ..inputs.draw import draw
from ..model.assignment import Assigned
from ..model.intermediates import DERIVED, reached
from ..model.report import NAMED
from ..numerics.budget import WholeIntermediates, tile_budget
from ..numerics.declared_precision import Tensors, output_rounding
from ..probing.experiment import Experiment
from ..reference import Tile, tiles
from ..reference.attention import BY_KEY, BY_ROW
from .behaviour import run_again

# The errors that a fault makes are thousands of roundings. Rounding itself is allowed four budgets here, because what a
# fault reads is of another size than what the budget was made for; verdicts are never judged by this.
_ROOM, _SHARPER = 4.0, 8.0
# Right elements of an intermediate that may be right by chance: of four numbers in a coarse arithmetic one may well be.
_BY_CHANCE = 2
# Below this no element speaks more for a prediction: a budget of 0 leaves no room at all.
_LEAST_CHANCE = 2.0**-40
# Of a rough test, which only chooses what is tested in full: relative errors.
_ROUGH = {"float32": 1e-4, "float16": 0.02, "bfloat16": 0.1}
_OF_O = frozenset({"LSE", "P", "O"})
_OF_DELTA = _OF_O | {"dP", "delta"}
# How many of those that fit roughly are tested in full, and what they must explain roughly, beside half of what the
# best does. How many of those that explain all are held against a second draw.
_FINALISTS, _ROUGHLY, _HELD = 16, 0.25, 8
# A chance of one in a thousand is none.
_SURE = 10.0


class Score(NamedTuple):
    reproduced: int = 0
    spoilt: int = 0
    bits: float = 0.0  # -log2 of the chance that predictions of something else are as near

    @property
    def gain(self) -> int:
        return self.reproduced - self.spoilt


@dataclass(frozen=True)
class Finalist:
    hypothesis: Hypothesis
    # Of what is wrong, or the mean of what is so by itself, if less.
    reproduced: float = 0.0
    # That, times the share of what is right that stays so where it is active.
    explained: float = 0.0
    active: Set[str] = frozenset()
    whole: Set[str] = frozenset()
    bits: float = 0.0
    # Intermediates that came right, and that the fault would make wrong.
    contradicted: int = 0
    said: tuple[str, ...] = ()


class _Portion(NamedTuple):
    names: Collection[str]
    tiles: Sequence[Tile]
    place: tuple[int, ...] = ()  # one batch of all; () for all
    is_rough: bool = False


class _Judgement(NamedTuple):
    actual: Tensor
    expected: Tensor
    bound: Tensor
    right: Tensor
    off: Tensor

    def at(self, place: tuple[int, ...]) -> _Judgement:
        return _Judgement(*map(itemgetter(place), self))


class Tester:
    def __init__(self, seen: WrongRun) -> None:
        self.seen = seen
        self.wrong = {name: count for name in seen.right if (count := seen.wrong(name))}
        self.hypotheses = list(hypotheses(seen)) if self.wrong else []
        self._plain = plain_variant(seen.x, readable(seen))
        self._all = _Portion(list(seen.right), (*tiles(seen.x),))
        self._came = dict[str, _Judgement]()
        # Beside numbers, in one intermediate: NaN throughout says nothing.
        self._has_nan = False
        for name, right in seen.right.items():
            actual, expected = seen.actual[name], seen.expected[name]
            off, finite = (actual - expected).abs(), actual.isfinite()
            self._came[name] = _Judgement(actual, expected, seen.allowed[name], right, off)
            self._has_nan |= bool(finite.any()) and not bool((finite | right).all())

    def best(self, known: Hypothesis) -> Finalist:
        """In all its forms, if a number is measured off the values."""
        same = [other for other in self.hypotheses if other.fault == known.fault]
        forms = [other for other in same if other.summary == known.summary] or same
        return max(map(self.fit, forms), key=attrgetter("explained"), default=Finalist(known))

    def fit(self, hypothesis: Hypothesis) -> Finalist:
        best, active, wrong = dict(self._of_right_arithmetic), set[str](), self.wrong
        contradicted = len(self._all.names)
        for found in self._scores(hypothesis, self._all):
            # Of several ways the one that leaves right what came right tells how well it fits.
            denied = {name for name, score in found.items() if score.spoilt} - wrong.keys()
            contradicted = min(contradicted, len(denied))
            for name in wrong:
                if found[name].gain > max(0, best[name].gain):
                    best[name] = found[name]
                    active.add(name)
        reproduced = sum(score.reproduced for score in best.values()) / sum(wrong.values())
        if own := wrong.keys() & {*self.seen.own}:
            mean = sum(best[name].reproduced / wrong[name] for name in own) / len(own)
            reproduced = min(reproduced, mean)
        kept, bits = 1.0, 0.0
        for name in active:
            right = max(1, self.seen.right[name].numel() - wrong[name])
            kept = min(kept, 1 - max(0, best[name].spoilt - _BY_CHANCE) / right)
            bits += best[name].bits
        whole = {name for name, count in wrong.items() if best[name].gain >= NAMED * count}
        explained = reproduced * kept
        return Finalist(hypothesis, reproduced, explained, active, whole, bits, contradicted)

    def share(self, hypothesis: Hypothesis) -> float:
        """Of the first wrong batch; of what is stored elsewhere, of all."""
        first, right = self.seen.measured.first, self.seen.right
        batch = (first.batch or 0) if first else 0
        kept = [name for name in self.seen.own if name in (*BY_ROW, *BY_KEY)]
        own = [name for name in kept if not bool(right[name][batch].all())]
        portion = _Portion(own, self._all.tiles[batch : batch + 1], (batch,), is_rough=True)
        if hypothesis.finish is not None or not own:
            portion = _Portion(self.seen.own, self._all.tiles, is_rough=True)
        most, total = dict.fromkeys(portion.names, 0), 0.0
        for scores in self._scores(hypothesis, portion):
            most = {name: max(gain, scores[name].gain) for name, gain in most.items()}
        for name, gain in most.items():
            total += gain / max(1, int((~right[name][portion.place]).sum()))
        return total / max(1, len(most))

    @cached_property
    def _of_right_arithmetic(self) -> dict[str, Score]:
        found = self._scored(self._plain, self._branches[0], self._all, self._has_nan)
        return {name: score if score.gain > 0 else Score() for name, score in found.items()}

    def _scored(
        self, variant: Variant, buffers: Tensors, portion: _Portion, not_finite: bool
    ) -> dict[str, Score]:
        scores, (values, bounds) = dict[str, Score](), self._predicted(variant, buffers, portion)
        for name in portion.names:
            came, value = self._came[name].at(portion.place), values[name][portion.place]
            if portion.is_rough:
                allowed = _ROOM * came.bound + _ROUGH[self.seen.case.dtype] * _sizes(value)
                near = _near(came, value, allowed, not_finite)
                # As many as it reproduces more than it spoils.
                scores[name] = Score(int(near.sum()), int(came.right.sum()))
                continue
            # A fault makes values larger than bounds were made for.
            due, largest = float(_sizes(came.expected).max()), float(_sizes(value).max())
            larger = max(1.0, largest / due) if due else 1.0
            allowed = _ROOM * larger * bounds[name].nan_to_num(0.0)
            near = _near(came, value, allowed, not_finite)
            tiny = torch.finfo(self.seen.measured.trace.values[name].dtype).tiny
            scores[name] = _score(came, value, allowed, near, tiny)
        return scores

    def _scores(self, hypothesis: Hypothesis, portion: _Portion) -> Iterator[dict[str, Score]]:
        variant, changes = hypothesis.variant(self._plain), hypothesis.changes
        not_finite = hypothesis.not_finite and self._has_nan
        # Where nothing changes that a buffer is made of, its right values and a fault's own are the same.
        different = 1 if not changes & _OF_DELTA else 2 if not changes & _OF_O else None
        for buffers in self._branches[:different]:
            yield self._scored(variant, buffers, portion, not_finite)
        hidden = tuple(name for name in BUFFERS if name not in self.seen.actual)
        changed, stores = changes.intersection(hidden), list[tuple[str, ...]]()
        stores += [(name,) for name in ("LSE", "delta") if name in changed]
        if {"LSE", "O"} & {*hidden} and "delta" in hidden and changed:
            stores.append(hidden)
        for names in stores:
            stored = {**self._branches[0], **self._stored(names, variant, portion)}
            yield self._scored(self._plain, stored, portion, not_finite)

    @cached_property
    def _branches(self) -> tuple[Tensors, ...]:
        actual, choices = self.seen.actual, dict[tuple[str, ...], Tensors]()
        known = {**self.seen.expected, **actual}
        # Plain Python may compute P anew, beside the O and delta of its forward.
        anew = [] if self.seen.launches else [("LSE",)]
        for hidden in ((), ("delta",), BUFFERS, *anew):
            names = known.keys() - ({*hidden} - actual.keys())
            found = {name: known[name] for name in BUFFERS if name in names}
            choices.setdefault(tuple(found), found)
        return tuple(choices.values())

    def _stored(
        self, names: Sequence[str], variant: Variant, portion: _Portion
    ) -> dict[str, Tensor]:
        whole = {name: self.seen.expected[name].clone() for name in names}
        kept = {name: value for name, value in self._branches[0].items() if name not in names}
        for tile in portion.tiles:
            place, values = (tile.batch, tile.heads, tile.rows), variant.on(tile, kept)
            for name in names:
                whole[name][place] = values[name]
            if len(names) > 1:
                forward = {name: of for name, of in (kept | whole).items() if name != "delta"}
                whole["delta"][place] = self._plain.on(tile, forward)["delta"]
        return whole

    def _predicted(
        self, variant: Variant, buffers: Tensors, portion: _Portion
    ) -> tuple[Tensors, Tensors]:
        measured, is_full = self.seen.measured, not portion.is_rough
        precision = measured.comparison.precision
        shapes = {name: tuple(value.shape) for name, value in self.seen.actual.items()}
        whole = WholeIntermediates(variant, shapes, bounded=is_full)
        for tile in portion.tiles:
            values = variant.on(tile, buffers)
            budget = tile_budget(variant, tile, values, precision) if is_full else None
            whole.add(tile, values, budget)
        more = variant.finish(whole.values) if variant.finish is not None else {}
        for name, bound in whole.bounds.items():
            value, dtype = whole.values[name], measured.trace.values[name].dtype
            allowed = whole.bound(name, value, precision) if name in whole.squares else bound
            whole.bounds[name] = allowed + output_rounding(value, allowed, dtype)
        return {**whole.values, **more}, whole.bounds


def _sizes(values: Tensor) -> Tensor:
    return values.abs().nan_to_num(0.0, 0.0, 0.0)


def _near(came: _Judgement, predicted: Tensor, allowed: Tensor, not_finite: bool) -> Tensor:
    error = (came.actual - predicted).abs()
    near = (error <= allowed) & ~(error > came.off / _SHARPER)
    near |= (came.actual == predicted) | (error <= came.bound)
    if not_finite:  # anything that goes wrong makes NaN, which spreads
        near |= ~came.actual.isfinite() & ~predicted.isfinite() & (predicted != came.expected)
    return near


def _score(came: _Judgement, value: Tensor, allowed: Tensor, near: Tensor, tiny: float) -> Score:
    reproduced, spoilt = near & ~came.right, int((~near & came.right).sum())
    if not bool(reproduced.any()):
        return Score(0, spoilt)
    room = came.bound.maximum(allowed.minimum(came.off / _SHARPER))
    is_more = value.abs() > room
    # A 0 is reproduced by a 0, and not by a number whose own bound is so wide that it takes in 0. All of a head exactly
    # 0 is no small number: only what gives 0 explains that.
    rest = tuple(range(min(2, value.dim()), value.dim()))
    is_something = (came.actual != 0).any(rest, keepdim=True) if rest else came.actual != 0
    reproduced &= ~((came.actual == 0) & is_more) & ((value.abs() <= tiny) | is_something)
    # How unlikely it is that predictions of something else, off by up to as much, lie as near. A NaN is one of two, and
    # so is a 0: nothing flows for many reasons.
    room, off, is_more = room[reproduced], came.off[reproduced], is_more[reproduced]
    chance = (room / off).masked_fill(~(off.isfinite() & is_more) | (off == 0), 0.5)
    bits = -chance.clamp(_LEAST_CHANCE, 1.0).log2().sum()
    return Score(int(reproduced.sum()), spoilt, float(bits))


def ranked(seen: WrongRun) -> list[Finalist]:
    """Best first; each fault once.

    A number counts log2(1 / p) bits, p being the share of predictions that would count too; n hypotheses take log2(n).
    """
    tester = Tester(seen)
    every, outside = tester.hypotheses, seen.actual.keys() - seen.right.keys()
    shares = [*map(tester.share, every)]
    least = max(_ROUGHLY, max(shares, default=0.0) / 2)
    likely = sorted(range(len(every)), key=shares.__getitem__, reverse=True)[:_FINALISTS]

    def order(fit: Finalist) -> tuple[float, int, int]:
        # What explains more first, then what would make less wrong that came right or is not in question.
        others = reached(fit.hypothesis.changes, seen.case.family)
        contradicted = fit.contradicted + len(outside.intersection(others))
        return -round(fit.explained, 3), contradicted, len(others)

    fits, best = list[Finalist](), dict[str, Finalist]()
    for at in sorted(likely):  # of those that explain as much, the first of the table
        if shares[at] >= least:
            fit = tester.fit(every[at])
            bits = math.inf if every[at].is_plain else fit.bits - math.log2(len(every)) - _SURE
            fits.append(replace(fit, bits=bits))
    for fit in sorted(fits, key=order):
        best.setdefault(fit.hypothesis.fault, fit)
    return list(best.values())


def explaining(seen: WrongRun, known: Mapping[str, Hypothesis]) -> str:
    best = Tester(seen).best
    return next((fault for fault, of in known.items() if best(of).explained >= NAMED), "")


def in_parts(experiment: Experiment, assigned: Assigned, seen: WrongRun) -> list[list[Finalist]]:
    """Best first; of several faults those of all."""
    tested = _fitting(experiment, assigned, seen)
    if not tested or tested[0].explained >= NAMED:
        return [tested]
    whole = tested[0].whole
    rest = {*seen.wrong_names} - whole
    if whole.isdisjoint(seen.own) or rest.isdisjoint(seen.own):
        return [tested]
    # What is right stands beside each of them: a fault that would have made it wrong is none.
    found = list[list[Finalist]]()
    for names in (seen.right.keys() - rest, seen.right.keys() - whole):
        found += in_parts(experiment, assigned, seen.of(names))
    return found if all(each and each[0].explained >= NAMED for each in found) else [tested]


def _fitting(experiment: Experiment, assigned: Assigned, seen: WrongRun) -> list[Finalist]:
    tested = ranked(seen)
    named = [fit for fit in tested if fit.explained >= NAMED]
    second = _second(experiment, assigned, seen.right) if named else None
    best, others = list[Finalist](), tested[len(named) :]
    for number, fit in enumerate(named[:_HELD], 1):
        again = _again(fit, second)
        if again.explained >= NAMED and again.bits >= 0:
            best, others = [again], [*others, *tested[number : len(named)]]
            break
        others.append(again)
    others.sort(key=lambda fit: -round(fit.explained, 3))
    return [fit for fit in (*best, *others) if fit.bits >= 0]


def _second(experiment: Experiment, assigned: Assigned, names: Collection[str]) -> Tester | None:
    case = experiment.case
    values = experiment.values if experiment.saved else draw(replace(case, seed=case.seed ^ 1))
    if experiment.saved:  # O and LSE belong to the old order
        values = {name: values[name] for name in values if name not in DERIVED}
        values |= {name: values[name].flip(2) for name in ("q", "v")}
    values = {name: value.to(case.device) for name, value in values.items()}
    seen = run_again(replace(experiment, values=values), assigned)
    return Tester(seen.of(names)) if seen is not None else None


def _again(fit: Finalist, second: Tester | None) -> Finalist:
    if second is None:
        return replace(fit, said=("tested on one draw only: the target refused another",))
    # That what is right stays right the first has shown: of a few dozen zeros the rounding of a fault spoils six.
    again = second.best(fit.hypothesis)
    explained = min(fit.explained, again.reproduced)
    return replace(fit, explained=explained, bits=fit.bits + again.bits)
