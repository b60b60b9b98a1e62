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
from .plan import Plan, PlannedCheck, Steps, titled
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


def sweep_plan(
    asked: SweepRequest,
    takes: Sequence[TargetSignature | None],
    kept: Sequence[Report] = (),
    workers: int = 1,
) -> Plan:
    """The cases of a sweep, the cheapest first; of one by minutes, more while it lasts.

    Args:
        takes: what each target takes; None of one that cannot be imported, which is asked once, and says why.
        kept: what was made of it before.

    Raises:
        UsageFailure: there are too many cases, or none.
    """
    looks_closer = not any("recover" in request.options for request in asked.requests)
    plan = Plan(is_own=asked.is_drawn, looks_closer=asked.is_drawn and looks_closer)
    for request, taken in zip(asked.requests, takes, strict=True):
        if not asked.is_drawn or taken is None:
            plan.checks += _combined(asked, request, taken, len(plan.checks))
        elif asked.minutes is None:
            cases = _drawn(asked, request, taken)
            plan.checks += _cheapest_first(itertools.islice(cases, asked.draw))
        else:
            _last_minutes(plan, asked.minutes, _drawn(asked, request, taken), kept, workers)
    return plan


def _title(asked: SweepRequest, request: CheckRequest, name: str) -> str:
    is_one = len(asked.requests) == 1
    return name if is_one and name else f"{request.target} {name}".rstrip()


def _combined(
    asked: SweepRequest, request: CheckRequest, taken: TargetSignature | None, first: int
) -> list[PlannedCheck]:
    if asked.varied and not asked.is_drawn:
        matrix = combinations(asked.varied)
    else:
        matrix = suiting(taken, request.options) if taken else [{}]
    added = list[PlannedCheck]()
    for number, (name, options) in enumerate(zip(titles(matrix), matrix, strict=True), first):
        whole = replace(request, options={**request.options, **options})
        price = cost(_case_of_either(whole.options, request.family))
        title = _title(asked, request, name)
        added.append(PlannedCheck(title, whole, number=number, cost=price))
    return _cheapest_first(added)


def _drawn(
    asked: SweepRequest, request: CheckRequest, taken: TargetSignature
) -> Iterator[PlannedCheck]:
    """Cases that are drawn for a target; black boxes are looked into in the simplest that fails alone."""
    fixed = {name: [word] for name, word in request.options.items() if name != "seed"}
    given = {"recover": [False], **fixed, **asked.varied}
    for options in drawn(taken, given, request.options.get("seed", 0)):
        title = _title(asked, request, title_of(options, [*fixed, "recover"]))
        whole, price = replace(request, options=options), cost(case_of(options, taken))
        yield PlannedCheck(title, whole, cost=price, beyond=beyond(options, taken))


def _last_minutes(
    plan: Plan,
    minutes: float,
    cases: Iterator[PlannedCheck],
    kept: Sequence[Report],
    workers: int,
) -> None:
    """Has a plan draw on while the minutes last that it has not spent yet."""
    seconds, sample = 60.0 * minutes, _cheapest_first(itertools.islice(cases, BATCH))
    stream = itertools.chain(sample, _in_batches(cases))
    spent = sum(report.seconds.get("total", 0.0) for report in kept) / workers
    until = time.monotonic() + seconds - spent
    last = max((report.number for report in kept), default=-1)
    plan.checks += itertools.islice(stream, last + 1 + 2 * workers)
    plan.titles = [check.title for check in sample]
    plan.clock = lambda: 1.0 - (until - time.monotonic()) / seconds

    def steps() -> Steps[PlannedCheck, CheckOutcome]:
        yield ()
        while time.monotonic() < until:
            yield list(itertools.islice(stream, 1))

    plan.steps = steps()
    next(plan.steps)


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
