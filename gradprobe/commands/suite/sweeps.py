"""A sweep as a plan: every combination of the values of options, a dozen cases that suit a target, or drawn ones."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...inputs.history import CheckRequest
from ...model.case import Case
from ...model.failures import UsageFailure
from ...model.report import Report
from .drawing import LENGTHS, beyond, case_of, cost, drawn, title_of
from .journal import SweepRequest
from .outcome import CheckOutcome
from .plan import Plan, PlannedCheck, titled
from .takes import TargetSignature

# Of combinations: days of checks.
LARGEST = 10_000
# Cases that are drawn together, and then put in order.
BATCH = 64
# Options that decide lengths, or heads, by themselves.
_LENGTHS = {*LENGTHS, "inputs"}
_GROUPS = {"heads", "kv_heads", "tau", "inputs"}


def combinations(values: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """The options of each case; the last option varies fastest.

    Raises:
        UsageFailure: there are more than anybody waits for.
    """
    count = math.prod(len(words) for words in values.values())
    if count > LARGEST:
        words = f"sweep: {count:,} cases are more than {LARGEST:,}"
        raise UsageFailure(words, "give fewer values")
    rows = itertools.product(*values.values())
    return [dict(zip(values, row, strict=True)) for row in rows]


def suiting(takes: TargetSignature, given: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A dozen or so cases for a target: lengths of less than a tile, of one and a bit, and of several; both head dims.

    An option that is given is the same in all.
    """
    is_softmax, has_values = takes.family == "softmax", "inputs" in given
    axes: dict[str, Sequence[Any]] = {}
    if "dtype" not in given and not has_values:
        axes["dtype"] = ("float32", "float16")
    if is_softmax and "causal" in takes.names and "causal" not in given:
        axes["causal"] = (False, True)
    largest = {}
    if not _LENGTHS & given.keys():
        axes["seqlen"], largest = (1, 37, 72), {"seqlen": 72}
    if "head_dim" not in given and not has_values:
        axes["head_dim"] = (16,)
    cases = combinations(axes)
    if "head_dim" in axes:
        cases.append({**largest, "head_dim": 72})
    if is_softmax and not _GROUPS & given.keys():
        cases.append({**largest, "heads": 4, "kv_heads": 2})
    return cases


def titles(cases: Sequence[Mapping[str, Any]]) -> list[str]:
    """A name for each case: the options in which they differ."""
    names, found = dict.fromkeys(itertools.chain.from_iterable(cases)), list[str]()
    vary = [name for name in names if len({str(case.get(name)) for case in cases}) > 1]
    for case in cases:
        found.append(" ".join(titled({name: case[name] for name in vary if name in case})))
    return found


class SweepPlan(Plan):
    """The cases of a sweep, the cheapest first; of one by minutes, more while it lasts."""

    def __init__(self, asked: SweepRequest, takes: Sequence[TargetSignature | None]) -> None:
        """
        Args:
            takes: what each target takes; None of one that cannot be imported, which is asked once, and says why.

        Raises:
            UsageFailure: there are too many cases, or none.
        """
        is_looked_into = any("recover" in request.options for request in asked.requests)
        super().__init__(
            is_own=asked.is_drawn, looks_closer=asked.is_drawn and not is_looked_into
        )
        self._asked = asked
        self._seconds, self._until = 60.0 * (asked.minutes or 0.0), 0.0
        self._stream: Iterator[PlannedCheck] = iter(())
        """What a sweep by minutes goes on with, without end."""
        for request, taken in zip(asked.requests, takes, strict=True):
            if asked.is_drawn and taken is not None:
                self._draw(request, taken)
            else:
                self._combine(request, taken)

    def _title(self, request: CheckRequest, name: str) -> str:
        is_one = len(self._asked.requests) == 1
        return name if is_one and name else f"{request.target} {name}".rstrip()

    def _combine(self, request: CheckRequest, taken: TargetSignature | None) -> None:
        if self._asked.varied and not self._asked.is_drawn:
            matrix = combinations(self._asked.varied)
        else:
            matrix = suiting(taken, request.options) if taken else [{}]
        added = list[PlannedCheck]()
        for name, options in zip(titles(matrix), matrix, strict=True):
            whole = replace(request, options={**request.options, **options})
            price = cost(_case_of_either(whole.options, request.family))
            number = len(self.checks) + len(added)
            added.append(
                PlannedCheck(self._title(request, name), whole, number=number, cost=price)
            )
        self.checks += _cheapest_first(added)

    def _draw(self, request: CheckRequest, taken: TargetSignature) -> None:
        """Adds cases that are drawn for a target; black boxes are looked into in the simplest that fails alone."""
        asked, seed = self._asked, request.options.get("seed", 0)
        fixed = {name: [word] for name, word in request.options.items() if name != "seed"}

        def planned(options: Mapping[str, Any]) -> PlannedCheck:
            title = self._title(request, title_of(options, [*fixed, "recover"]))
            whole, price = replace(request, options=options), cost(case_of(options, taken))
            return PlannedCheck(title, whole, cost=price, beyond=beyond(options, taken))

        stream = map(planned, drawn(taken, {"recover": [False], **fixed, **asked.varied}, seed))
        if asked.minutes is None:
            self.checks += _cheapest_first(itertools.islice(stream, asked.draw))
            return
        sample = _cheapest_first(itertools.islice(stream, BATCH))
        self.titles = [check.title for check in sample]
        self._stream = itertools.chain(sample, _in_batches(stream))

    def begin(self, kept: Sequence[Report], workers: int) -> None:
        spent = sum(report.seconds.get("total", 0.0) for report in kept) / workers
        self._until = time.monotonic() + self._seconds - spent
        last = max((report.number for report in kept), default=-1)
        self.checks += itertools.islice(self._stream, last + 1 + 2 * workers)

    def more(self, made: Sequence[CheckOutcome]) -> Sequence[PlannedCheck]:
        return list(itertools.islice(self._stream, int(time.monotonic() < self._until)))

    def progress(self, done: Sequence[PlannedCheck]) -> tuple[str, float]:
        if not self._seconds:
            return super().progress(done)
        left = (self._until - time.monotonic()) / self._seconds
        return f"{len(done)} made", min(1.0, 1.0 - left)


def _in_batches(stream: Iterator[PlannedCheck]) -> Iterator[PlannedCheck]:
    while batch := _cheapest_first(itertools.islice(stream, BATCH)):
        yield from batch


def _cheapest_first(checks: Iterable[PlannedCheck]) -> list[PlannedCheck]:
    return sorted(checks, key=lambda planned: planned.cost)


def _case_of_either(options: Mapping[str, Any], family: str | None) -> Case | None:
    """The case of options for a target that is not looked at; None where it is not known."""
    for name in ("softmax", "lazy") if "inputs" not in options else ():
        case = case_of(options, TargetSignature(name, frozenset(), frozenset()))
        if case is not None and family in (None, name):
            return case
    return None
