"""Batteries as plans: a table of cases, or rounds of pairs, each planned by what came of those before it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Generator, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...inputs.history import CheckRequest
from ...inputs.options import command_line
from ...model.documents import AUTO, BATTERIES, PAIRS, QUICK, Coverage, RefusedCase
from ...model.failures import UsageFailure, did_you_mean
from .battery import Item, battery, set_by
from .case_factors import Factors, factors_of, found_by_trying, set_by_factors
from .checking import Setting
from .covering import Level, Row, Space, covering, simplest, standing
from .outcome import CheckOutcome
from .plan import Plan, PlannedCheck, Steps
from .takes import described

# Processes that share a GPU: cases are small, and what takes long is to compile and to compare them.
_ON_ONE_GPU = 8
# Checks of one battery, far more than there are.
_MOST = 1_000_000
# The options by which other code is compiled for a kernel; where a tensor lies and how long it is hardly are.
_COMPILED = (
    "dtype", "head_dim", "head_dim_v", "causal", "window", "bias", "softcap", "alibi", "mask", "sinks", "block_m",
)  # fmt: skip
# Pairs of which the simplest case is made at once, and how often.
_AT_ONCE, _TIMES = 20, 6
_RIGHT, _WRONG, _UNTAKEN = "right", "wrong", "not taken"

Came = Mapping[str, CheckOutcome]
"""What came of items, by their names."""


def refuse_unknown_battery(word: str) -> None:
    """Raises UsageFailure where --battery has a word that it does not know."""
    if word not in BATTERIES:
        known = [name for name in BATTERIES if name != AUTO]
        way_out = did_you_mean(word, known, "") or "alone it is pairs"
        raise UsageFailure(f"--battery takes {' or '.join(known)}, got {word!r}", way_out)


def _sets(word: str, option: str) -> str:
    """What of a battery sets an option; "" where nothing does."""
    return set_by(option) if word == QUICK else set_by_factors(option)


def refuse_set_by_it(word: str, options: Mapping[str, Any]) -> None:
    """Raises UsageFailure where an option was given that a case of a battery sets."""
    for name, value in options.items():
        if what := _sets(word, name):
            option = command_line("", "", {name: value}).split(maxsplit=1)[1]
            way_out = "drop it, or check that case without --battery"
            raise UsageFailure(f"{option}: {what} of --battery sets it", way_out)


def battery_plan(word: str, request: CheckRequest, setting: Setting) -> tuple[Plan, Setting]:
    """A battery of a target, and how its checks are made. It imports the target, apart.

    What a case of it sets is left out of the options.

    Args:
        word: one of model.documents.BATTERIES.
    """
    own = {name: value for name, value in request.options.items() if not _sets(word, name)}
    request = replace(request, options=own)
    (takes,) = described([request], setting.timeout, isolate=setting.isolate)
    if takes is None:  # it cannot be imported, is asked once, and that says why
        return _plan_of(request, [Item(1, "contiguous", {}, "")]), setting
    if word == QUICK:
        return _plan_of(request, battery(takes.family, takes.names, takes.required)), setting
    on_gpu, cores = takes.device == "cuda", len(os.sched_getaffinity(0))
    pairs = PairRounds(factors_of(takes, request.options, on_gpu=on_gpu))
    workers = min(cores, _ON_ONE_GPU) if on_gpu else cores
    return _plan_of(request, next(pairs.rounds), pairs), replace(setting, workers=workers)


def _plan_of(
    request: CheckRequest, items: Sequence[Item], pairs: PairRounds | None = None
) -> Plan:
    """The checks of items, in one round or, of pairs, in several."""
    plan = Plan(is_own=True, looks_closer="recover" not in request.options)
    plan.untaken += [RefusedCase(item.name, item.why_not) for item in items if item.why_not]
    plan.checks = _planned(request, items, 0, combined=pairs is not None)
    if pairs is not None:
        plan.titles, plan.alike = pairs.titles, _compiled_alike
        plan.steps = _rounds(plan, request, pairs)
        next(plan.steps)
    return plan


def _compiled_alike(planned: PlannedCheck) -> Hashable:
    return tuple(planned.request.options.get(name) for name in _COMPILED)


def _planned(
    request: CheckRequest, items: Sequence[Item], first: int, *, combined: bool = True
) -> list[PlannedCheck]:
    # Black boxes are not looked into: of all that fail, the simplest alone is shown in full.
    without, planned = {"recover": False, **request.options}, list[PlannedCheck]()
    for title, item in {item.name: item for item in items if not item.why_not}.items():
        number = first + len(planned)
        if combined:  # the case with the fewest properties comes first
            number += _MOST * len(title.split())
        whole = replace(request, options={**without, **item.options})
        planned.append(PlannedCheck(title, whole, number=number, beyond=item.beyond))
    return planned


def _rounds(
    plan: Plan, request: CheckRequest, pairs: PairRounds
) -> Steps[PlannedCheck, CheckOutcome]:
    """The rounds after the first, each once all of the one before it are made."""
    added = plan.checks
    outcome = yield ()
    while True:
        came = {outcome.title: outcome}
        while len(came) < len(added):
            outcome = yield ()
            came[outcome.title] = outcome
        try:
            added = _planned(request, pairs.rounds.send(came), len(plan.checks))
        except StopIteration:
            plan.coverage = pairs.coverage
            return
        outcome = yield added


class PairRounds:
    """The rounds of a battery whose cases hold every two levels that a target takes.

    1. The case without any option, to which what a target takes is found by trying.
    2. Each level alone. What is refused or wrong so stands in no later case: it would hide what else is wrong there.
    3. A covering array of the others.
    4. Where some were refused or wrong: the simplest case of each pair that stands in no right one shows which of them
       it is. Those stand in no later case either, and what is left is covered once more.
    """

    def __init__(self, factors: Factors) -> None:
        self._factors = factors
        self._came: dict[Row, str] = {}
        """_RIGHT, _WRONG or _UNTAKEN, of each row that was made."""
        self._out = set[frozenset[Level]]()
        """Levels and pairs that stand in no further case."""
        self._wrong_alone: list[str] = []
        self._wrong_together: list[str] = []
        self._is_combined = False
        self.rounds = self._rounds()

    @property
    def titles(self) -> list[str]:
        """Such as theirs may be."""
        return [self._item(row).name for row in covering(self._factors.space)]

    def _rounds(self) -> Generator[list[Item], Came, None]:
        first = Item(0, "as it is", self._factors.plain, "")
        came = yield [first, *(Item(0, name, {}, why) for name, why in self._factors.lacking)]
        plain = came[first.name].report
        if plain.verdict != "match" or plain.case is None:
            return
        self._factors = self._factors.around(plain.case)
        yield from self._alone()
        if self._came.get(self._simplest_row) == _RIGHT:
            self._is_combined = True
            yield from self._array()
            yield from self._apart()

    @property
    def coverage(self) -> Coverage:
        """What the rows that were taken hold."""
        alone, together = tuple(self._wrong_alone), tuple(self._wrong_together)
        if not self._is_combined:
            return Coverage(strength=PAIRS, properties=0, wrong_alone=alone)
        space, held, missing = self._space, set[frozenset[Level]](), 0
        for row, came in self._came.items():
            if came != _UNTAKEN:
                held |= standing(row)
        for pair in space.pairs():
            missing += pair not in held and simplest(space, pair) is not None
        return Coverage(
            strength=PAIRS,
            properties=len(self._factors.each),
            held=len(held),
            missing=missing,
            wrong_alone=alone,
            wrong_together=together,
        )

    @property
    def _space(self) -> Space:
        space = self._factors.space
        return replace(space, forbidden=space.forbidden | self._out)

    @property
    def _simplest_row(self) -> Row:
        return (0,) * len(self._factors.each)

    def _alone(self) -> Generator[list[Item], Came, None]:
        space, rows = self._factors.space, dict[Level, Row]()
        for level in (
            level for factor in range(len(space.counts)) for level in space.levels(factor)
        ):
            if (row := simplest(space, frozenset([level]))) is not None:
                rows[level] = row
        came = yield from self._outcomes([self._simplest_row, *rows.values()], self._beside())
        found = {}
        for level, row in rows.items():
            outcome = came[self._item(row).name]
            if outcome.verdict == "match" and outcome.report.case is not None:
                found[level] = found_by_trying(outcome.report.case)
                continue
            if row != self._simplest_row:
                self._out.add(frozenset([level]))
            if self._came[row] == _WRONG:
                self._wrong_alone.append(self._factors.title(row))
        self._factors = replace(self._factors, found=found)

    def _array(self) -> Generator[list[Item], Came, None]:
        """What stands in no right row yet, in few rows."""
        right = [row for row, came in self._came.items() if came == _RIGHT]
        yield from self._outcomes(covering(self._space, right))

    def _apart(self) -> Generator[list[Item], Came, None]:
        """Finds pairs that are refused or wrong in their simplest case, and covers what is left without them."""
        found = False
        for _ in range(_TIMES):
            rows = self._suspects()
            yield from self._outcomes(row for row in rows.values() if row not in self._came)
            for pair, row in rows.items():
                if self._came.get(row) != _RIGHT:
                    self._out.add(pair)
                if self._came.get(row) == _WRONG:
                    self._wrong_together.append(self._factors.title(row))
            found |= bool(rows)
        if found:
            yield from self._array()

    def _suspects(self) -> dict[frozenset[Level], Row]:
        """Pairs that stand in no right row, each with its simplest row: those in most unexplained rows first."""
        space, right, counts = self._space, set[frozenset[Level]](), Counter[frozenset[Level]]()
        for row, came in self._came.items():
            if came == _RIGHT:
                right |= standing(row)
            elif not any(known <= set(enumerate(row)) for known in self._out):
                counts.update(sorted(standing(row), key=sorted))
        rows = dict[frozenset[Level], Row]()
        for pair in [pair for pair, _ in counts.most_common() if pair not in right][:_AT_ONCE]:
            if (least := simplest(space, pair)) is not None:
                rows[pair] = least
        return rows

    def _outcomes(
        self, rows: Iterable[Row], beside: Sequence[Item] = ()
    ) -> Generator[list[Item], Came, Came]:
        items = {row: self._item(row) for row in rows}
        if not items and not beside:
            return {}
        came = yield [*items.values(), *beside]
        for row, item in items.items():
            if item.name in came:
                self._came[row] = _word(came[item.name])
        return came

    def _item(self, row: Row) -> Item:
        # With poison an element that is never written shows.
        options = {"poison": True, **self._factors.options(row)}
        return Item(0, self._factors.title(row), options, "", self._factors.beyond(row))

    def _beside(self) -> list[Item]:
        """What the table of the quick battery shows and no pair does, as the target takes it."""
        takes, names = self._factors.takes, {"head_dim", *self._factors.always}
        own = self._factors.options(self._simplest_row)
        kept = {name: own[name] for name in names if name in own}
        items = battery(takes.family, takes.names, takes.required)
        alone = [item for item in items if item.is_alone and not item.why_not]
        return [replace(item, options={**item.options, **kept}) for item in alone]


def _word(outcome: CheckOutcome) -> str:
    # What is an error only where nobody said that it is taken is not taken either.
    if outcome.is_refused or outcome.report.is_warning:
        return _UNTAKEN
    return _RIGHT if outcome.verdict == "match" else _WRONG
