"""Batteries as plans: cases with one property each, then every pair, each round planned by those before it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...inputs.history import CheckRequest
from ...model.case import flag_of
from ...model.documents import AUTO, BATTERIES, PAIRS, QUICK, Coverage, RefusedCase
from ...model.failures import UsageFailure, did_you_mean
from ...model.layout_run import MATCH
from .case_factors import (
    FIRST_PAIRS,
    SPECIAL,
    WIDE,
    Factors,
    factors_of,
    found_by_trying,
    is_set_by_it,
    why_not_taken,
)
from .checking import Setting
from .covering import Place, Row, Space, covering, simplest, standing
from .outcome import CheckOutcome
from .plan import Plan, PlannedCheck
from .takes import described

# Processes that share a GPU: cases are small, and what takes long is to compile and to compare them.
_ON_ONE_GPU = 8
# Checks of one battery, far more than there are.
_MOST = 1_000_000
# Pairs of which the simplest case is made at once, and how often.
_AT_ONCE, _TIMES = 20, 6

Came = Mapping[str, CheckOutcome]
"""What came of checks, by their titles."""
Round = Generator[Sequence[PlannedCheck], CheckOutcome, Came]


def refuse_battery(word: str, options: Iterable[str]) -> None:
    """Raises UsageFailure where --battery has a word that it does not know, or an option was given that it sets."""
    if word not in BATTERIES:
        known = [name for name in BATTERIES if name != AUTO]
        way_out = did_you_mean(word, known, "") or "alone it is pairs"
        raise UsageFailure(f"--battery takes {' or '.join(known)}, got {word!r}", way_out)
    for name in filter(is_set_by_it, options):
        way_out = "drop it, or check that case without --battery"
        raise UsageFailure(f"{flag_of(name)}: --battery sets it", way_out)


def battery_plan(word: str, request: CheckRequest, setting: Setting) -> tuple[Plan, Setting]:
    """A battery of a target, and how its checks are made. It imports the target, apart.

    What a case of it sets is left out of the options.

    Args:
        word: one of model.documents.BATTERIES.
    """
    own = {name: value for name, value in request.options.items() if not is_set_by_it(name)}
    request = replace(request, options=own)
    (takes,) = described([request], setting.timeout, isolate=setting.isolate)
    if takes is None:  # it cannot be imported, is asked once, and that says why
        return Plan([PlannedCheck("battery: as it is", request)], is_own=True), setting
    on_gpu, cores = takes.device == "cuda", len(os.sched_getaffinity(0))
    factors = factors_of(takes, request.options, on_gpu=on_gpu)
    workers = min(cores, _ON_ONE_GPU) if on_gpu else cores
    battery = Battery(factors, request, is_quick=word == QUICK)
    return battery.plan, replace(setting, workers=workers)


class Battery:
    """The rounds of a battery.

    1. The case without any option, to which what a target takes is found by trying.
    2. Each level alone, and what no pair shows. What is refused or wrong so stands in no later case: it would hide what
       else is wrong there. A quick one ends here, with a few pairs.
    3. A covering array: few cases that hold every pair of the other levels.
    4. Where some were refused or wrong: the simplest case of each pair that stands in no right one shows which of them
       it is. Those stand in no later case either, and what is left is covered once more.
    """

    def __init__(
        self, factors: Factors, request: CheckRequest, *, is_quick: bool = False
    ) -> None:
        self._factors, self._request, self._is_quick = factors, request, is_quick
        self._came: dict[Row, bool | None] = {}
        """Whether each row that was made is right; None of one that is not taken."""
        self._out = set[frozenset[Place]]()
        """Levels and pairs that stand in no further case."""
        self._count = 0
        untaken = [*factors.lacking]
        for level in SPECIAL:
            if why := why_not_taken(level, factors.takes):
                untaken.append((level.name, why))
        steps = self._steps()
        self.plan = Plan(
            list(next(steps)),
            steps,
            is_own=True,
            looks_closer="recover" not in request.options,
            untaken=[RefusedCase(f"battery: {name}", why) for name, why in untaken],
            titles=[f"battery: {factors.title(row)}" for row in covering(factors.space)],
        )

    def _steps(self) -> Generator[Sequence[PlannedCheck], CheckOutcome, None]:
        (plain,) = (yield from _round([self._check("as it is", self._factors.plain)])).values()
        case, properties = plain.report.case, 0
        if plain.verdict == MATCH and case is not None:
            self._factors = self._factors.around(case)
            yield from self._alone()
            if self._is_quick:
                return
            if self._came.get(self._simplest_row):
                properties = len(self._factors.each)
                yield from self._array()
                yield from self._apart()
        self.plan.coverage = self._coverage(properties)

    def _coverage(self, properties: int) -> Coverage:
        """What the rows that were taken hold."""
        if not properties:
            return Coverage(strength=PAIRS, properties=0)
        space, held, missing = self.space, set[frozenset[Place]](), 0
        for row, is_right in self._came.items():
            if is_right is not None:
                held |= standing(row)
        for pair in space.pairs():
            missing += pair not in held and simplest(space, pair) is not None
        return Coverage(strength=PAIRS, properties=properties, held=len(held), missing=missing)

    @property
    def space(self) -> Space:
        """What may still stand together."""
        space = self._factors.space
        return replace(space, forbidden=space.forbidden | self._out)

    @property
    def _simplest_row(self) -> Row:
        return (0,) * len(self._factors.each)

    def _alone(self) -> Round:
        space, rows = self._factors.space, dict[Place, Row]()
        for factor in range(len(space.counts)):
            for level in space.levels(factor):
                if (row := simplest(space, frozenset([level]))) is not None:
                    rows[level] = row
        pairs = list(self._first_pairs()) if self._is_quick else []
        came = yield from self._make([self._simplest_row, *rows.values(), *pairs], self._beside())
        found = {}
        for level, row in rows.items():
            outcome = came[self._title(row)]
            if outcome.verdict == MATCH and outcome.report.case is not None:
                found[level] = found_by_trying(outcome.report.case)
            elif row != self._simplest_row:
                self._out.add(frozenset([level]))
        self._factors = replace(self._factors, found=found)
        return came

    def _first_pairs(self) -> Iterable[Row]:
        for pair in FIRST_PAIRS:
            places = {self._factors.place_of(*names) for names in pair.items()} - {None}
            row = simplest(self._factors.space, frozenset(filter(None, places)))
            if len(places) == len(pair) and row is not None:
                yield row

    def _beside(self) -> list[PlannedCheck]:
        """What no pair shows, as the target takes it."""
        takes, factors = self._factors.takes, self._factors
        checks = []
        for level in (*SPECIAL, *([WIDE] if self._is_quick else [])):
            if level.family in ("", takes.family) and not why_not_taken(level, takes):
                checks.append(self._check(level.name, factors.special(level)))
        return checks

    def _array(self) -> Round:
        """What stands in no right row yet, in few rows."""
        right = [row for row, is_right in self._came.items() if is_right]
        return (yield from self._make(covering(self.space, right)))

    def _apart(self) -> Generator[Sequence[PlannedCheck], CheckOutcome, None]:
        """Finds pairs that are refused or wrong in their simplest case, and covers what is left without them."""
        found = False
        for _ in range(_TIMES):
            rows = self._suspects()
            yield from self._make(row for row in rows.values() if row not in self._came)
            self._out |= {pair for pair, row in rows.items() if not self._came.get(row)}
            found |= bool(rows)
        if found:
            yield from self._array()

    def _suspects(self) -> dict[frozenset[Place], Row]:
        """Pairs that stand in no right row, each with its simplest row: those in most unexplained rows first."""
        space, right, counts = self.space, set[frozenset[Place]](), Counter[frozenset[Place]]()
        for row, is_right in self._came.items():
            if is_right:
                right |= standing(row)
            elif not any(known <= set(enumerate(row)) for known in self._out):
                counts.update(sorted(standing(row), key=sorted))
        rows = dict[frozenset[Place], Row]()
        for pair in [pair for pair, _ in counts.most_common() if pair not in right][:_AT_ONCE]:
            if (least := simplest(space, pair)) is not None:
                rows[pair] = least
        return rows

    def _make(self, rows: Iterable[Row], beside: Sequence[PlannedCheck] = ()) -> Round:
        checks = {}
        for row in dict.fromkeys(rows):
            # With poison an element that is never written shows.
            options = {"poison": True, **self._factors.options(row)}
            checks[row] = self._check(
                self._factors.title(row), options, self._factors.beyond(row)
            )
        came = yield from _round([*checks.values(), *beside])
        for row, check in checks.items():
            self._came[row] = _is_right(came[check.title])
        return came

    def _title(self, row: Row) -> str:
        return f"battery: {self._factors.title(row)}"

    def _check(self, name: str, options: Mapping[str, Any], beyond: str = "") -> PlannedCheck:
        # Black boxes are not looked into: of all that fail, the simplest alone is shown in full.
        whole = {"recover": False, **self._request.options, **options}
        # The case with the fewest properties comes first.
        self._count += 1
        number = self._count + _MOST * len(name.split())
        request = replace(self._request, options=whole)
        return PlannedCheck(f"battery: {name}", request, number=number, beyond=beyond)


def _round(checks: Sequence[PlannedCheck]) -> Round:
    """Has some checks made, and gives what came of them."""
    came, asked = dict[str, CheckOutcome](), checks
    for _ in checks:
        outcome = yield asked
        came[outcome.title], asked = outcome, ()
    return came


def _is_right(outcome: CheckOutcome) -> bool | None:
    # What is an error only where nobody said that it is taken is not taken either.
    if outcome.is_refused or outcome.report.is_warning:
        return None
    return outcome.verdict == MATCH
