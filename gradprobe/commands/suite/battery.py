"""Batteries as plans: cases with one property each, then every pair, each round planned by those before it."""

import os
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations, product
from typing import Any

from ...inputs.history import CheckRequest
from ...model.case import flag_of
from ...model.documents import AUTO, BATTERIES, PAIRS, QUICK, Coverage, RefusedCase
from ...model.failures import UsageFailure, did_you_mean
from ...model.layout_run import MATCH
from .case_factors import HOW, Factors, Level, Row, factors_of
from .checking import Setting
from .outcome import CheckOutcome
from .plan import Plan, PlannedCheck, described

# The options that no case of a battery sets: a dtype that is given is that of all.
FREE = {
    "dtype", "seed", "device", "dots", "recover", "ranks", "shards", "strict", "inplace", "arch", "untested", *HOW,
}  # fmt: skip
# What a quick battery has besides: a case, and pairs that are soonest mixed up.
_WIDE = Level("logits to 100", {"pattern": "wide"})
_FIRST_PAIRS = (
    ("M<N", "causal"), ("M>N", "causal"), ("grouped", "bias"), ("negative", "causal"), ("128k+1", "causal"),
    ("128k+1", "window"),
)  # fmt: skip
# Processes that share a GPU: cases are small, and what takes long is to compile and to compare them.
_ON_ONE_GPU = 8
# More checks than a battery has; pairs that are made alone since failing cases have them.
_MOST, _SUSPECTS = 1_000_000, 40

Pair = frozenset[str]
Round = Generator[Sequence[PlannedCheck], CheckOutcome, None]


def refuse_battery(word: str, options: Iterable[str]) -> None:
    """Raises UsageFailure where --battery has a word that it does not know, or an option was given that it sets."""
    if word not in BATTERIES:
        known = [*BATTERIES]
        known.remove(AUTO)
        way_out = did_you_mean(word, known, "") or "alone it is pairs"
        raise UsageFailure(f"--battery takes {' or '.join(known)}, got {word!r}", way_out)
    for name in options:
        if name not in FREE:
            way_out = "drop it, or check that case without --battery"
            raise UsageFailure(f"{flag_of(name)}: --battery sets it", way_out)


def battery_plan(word: str, request: CheckRequest, setting: Setting) -> tuple[Plan, Setting]:
    """A battery of a target, and how its checks are made; of the options given what it sets itself is left out."""
    own = {name: value for name, value in request.options.items() if name in FREE}
    request = replace(request, options=own)
    takes = described(request, setting.timeout, isolate=setting.isolate)
    if takes is None:  # it cannot be imported, is asked once, and that says why
        return Plan([PlannedCheck("battery: as it is", request)], is_own=True), setting
    on_gpu, cores = takes.device == "cuda", len(os.sched_getaffinity(0))
    factors = factors_of(takes, request.options, on_gpu=on_gpu)
    workers = min(cores, _ON_ONE_GPU) if on_gpu else cores
    battery = Battery(factors, request, is_quick=word == QUICK)
    return battery.plan, replace(setting, workers=workers)


@dataclass(frozen=True)
class Space:
    """The levels of each property by name, the simplest first, and the pairs of them that no row may have."""

    levels: Sequence[Sequence[str]]
    excluded: Collection[Pair] = frozenset()

    def pairs(self) -> Iterator[Pair]:
        for each, others in combinations(self.levels, 2):
            for pair in map(frozenset, product(each, others)):
                if pair not in self.excluded:
                    yield pair

    def simplest(self, wanted: Collection[str], row: Row = ()) -> Row | None:
        """The row with the simplest levels beside some wanted ones, from its beginning; None where there is none."""
        if len(row) == len(self.levels):
            return row
        here = self.levels[len(row)]
        for level in [level for level in here if level in wanted] or here:
            is_allowed = self._allows(level, {*row, *wanted})
            if is_allowed and (whole := self.simplest(wanted, (*row, level))) is not None:
                return whole
        return None

    def covering(self, given: Collection[Pair] = ()) -> list[Row]:
        """Rows in which every other pair stands that a row can hold: one after another, greedily."""
        left, rows = dict.fromkeys(self.pairs()), list[Row]()
        for pair in given:
            left.pop(pair, None)
        while left:
            first = next(iter(left))
            row = self._grown(first, left) or self.simplest(first) or ()
            rows += [row] if row else []
            for pair in (first, *map(frozenset, combinations(row, 2))):
                left.pop(pair, None)
        return rows

    def _grown(self, first: Pair, left: Collection[Pair]) -> Row:
        """A row around a pair: of each property, that of most levels first, what covers most; empty where stuck."""
        chosen, beside = dict[int, str](), {*first}
        for at in sorted(range(len(self.levels)), key=lambda at: -len(self.levels[at])):
            most, levels = -1, self.levels[at]
            for level in first.intersection(levels) or levels:
                gain = sum(frozenset({level, other}) in left for other in beside)
                if gain > most and self._allows(level, beside):
                    most, chosen[at] = gain, level
            if most < 0:
                return ()
            beside.add(chosen[at])
        return tuple(chosen[at] for at in sorted(chosen))

    def _allows(self, level: str, beside: Collection[str]) -> bool:
        return not any({level, other} in self.excluded for other in beside)


class Battery:
    """The rounds of a battery.

    1. The case without any option, for what a target takes.
    2. Each level alone, and what no pair shows. What is refused or wrong so stands in no later case: it would hide what
       else is wrong there. A quick one ends here, with a few pairs.
    3. A covering array: few cases that hold every pair of the other levels.
    4. The simplest case of each pair that failing cases alone have.
    """

    def __init__(
        self, factors: Factors, request: CheckRequest, *, is_quick: bool = False
    ) -> None:
        self._factors, self._request, self._is_quick = factors, request, is_quick
        self._came: dict[Row, CheckOutcome] = {}
        self._out = set[str]()
        self._count = 0
        steps = self._steps()
        self.plan = Plan(
            list(next(steps)),
            steps,
            is_own=True,
            looks_closer="recover" not in request.options,
            untaken=[RefusedCase(f"battery: {name}", why) for name, why in factors.lacking],
            titles=[f"battery: {factors.title(row)}" for row in self.space.covering()],
        )

    def _steps(self) -> Round:
        plain = yield [self._check("as it is", self._factors.plain)]
        if plain.verdict == MATCH and plain.report.case is not None:
            self._factors = self._factors.around(plain.report.case)
            yield from self._alone()
        if self._is_quick:
            return
        self.plan.coverage = Coverage(strength=PAIRS, properties=0)
        simplest = self._came.get(self._factors.simplest)
        if simplest is not None and simplest.verdict == MATCH:
            yield from self._make(self.space.covering(self._pairs_held(is_right=True)))
            space, right = self.space, self._pairs_held(is_right=True)
            failing = [set(row) for row in self._came if self._came[row].verdict != MATCH]
            suspects = [pair for pair in space.pairs() if pair not in right]
            suspects.sort(key=lambda pair: -sum(pair <= row for row in failing))
            yield from self._make(filter(None, map(space.simplest, suspects[:_SUSPECTS])))
            self.plan.coverage = self._coverage()

    @property
    def space(self) -> Space:
        left = [
            [name for name in names if name not in self._out] for names in self._factors.names
        ]
        return Space(left, self._factors.excluded)

    def _alone(self) -> Round:
        factors, space, rows = self._factors, self.space, dict[str, Row]()
        for level in chain(*space.levels):
            if (row := space.simplest([level])) is not None:
                rows[level] = row
        more, beside = list[Row | None](), [*factors.special]
        if self._is_quick:
            pairs = [pair for pair in _FIRST_PAIRS if rows.keys() >= {*pair}]
            more += map(space.simplest, pairs)
            beside.append(_WIDE)
        yield from self._make([factors.simplest, *rows.values(), *filter(None, more)], beside)
        for level, row in rows.items():
            if self._came[row].verdict != MATCH and row != factors.simplest:
                self._out.add(level)

    def _pairs_held(self, *, is_right: bool) -> set[Pair]:
        held = set[Pair]()
        for row, outcome in self._came.items():
            is_taken = not (outcome.is_refused or outcome.report.is_warning)
            if outcome.verdict == MATCH or (is_taken and not is_right):
                held.update(map(frozenset, combinations(row, 2)))
        return held

    def _coverage(self) -> Coverage:
        space, held = self.space, self._pairs_held(is_right=False)
        missing = sum(pair not in held and bool(space.simplest(pair)) for pair in space.pairs())
        properties = len(self._factors.each)
        return Coverage(strength=PAIRS, properties=properties, held=len(held), missing=missing)

    def _make(self, rows: Iterable[Row], beside: Iterable[Level] = ()) -> Round:
        checks, factors = dict[Row, PlannedCheck](), self._factors
        for row in dict.fromkeys(rows):
            if row not in self._came:
                # With poison an element that is never written shows.
                options = {"poison": True, **factors.options(row)}
                checks[row] = self._check(factors.title(row), options, factors.beyond(row))
        special = [self._check(level.name, factors.options_of(level)) for level in beside]
        yield from _round([*checks.values(), *special], came := dict[str, CheckOutcome]())
        for row, check in checks.items():
            self._came[row] = came[check.title]

    def _check(self, name: str, options: Mapping[str, Any], beyond: str = "") -> PlannedCheck:
        # Black boxes are not looked into: of all that fail, the simplest alone is shown in full.
        whole = {"recover": False, **self._request.options, **options}
        # The case with the fewest properties comes first.
        self._count += 1
        number = self._count + _MOST * len(name.split())
        request = replace(self._request, options=whole)
        return PlannedCheck(f"battery: {name}", request, number=number, beyond=beyond)


def _round(checks: Sequence[PlannedCheck], came: dict[str, CheckOutcome]) -> Round:
    for at in range(len(checks)):
        outcome = yield () if at else checks
        came[outcome.title] = outcome
