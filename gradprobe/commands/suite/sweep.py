"""A sweep as a plan: every combination of the values of options, or drawn cases."""

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
from .drawn_cases import drawn
from .journal import SweepRequest
from .outcome import CheckOutcome
from .plan import Plan, PlannedCheck, Steps, titled
from .takes import TargetSignature

# Of combinations: days of checks.
LARGEST = 10_000
# Cases that are drawn together, and then put in order; and those of a sweep that says nothing of its cases.
_BATCH, _DOZEN = 64, 12


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


def sweep_plan(
    asked: SweepRequest,
    takes: Sequence[TargetSignature | None],
    kept: Sequence[Report] = (),
    workers: int = 1,
) -> Plan:
    """The cases of a sweep, the cheapest first; of one by minutes, more while it lasts.

    Args:
        takes: what each target takes; None of one that is not asked for, or that cannot be imported.
        kept: what was made of it before.

    Raises:
        UsageFailure: there are too many cases, or none.
    """
    is_open = not any("recover" in request.options for request in asked.requests)
    plan = Plan(is_own=asked.is_drawn, looks_closer=asked.is_drawn and is_open)
    for request, taken in zip(asked.requests, takes, strict=True):
        if not asked.is_drawn or taken is None:
            # One that cannot be imported is asked once, and says why.
            values = {} if asked.is_drawn else asked.varied
            plan.checks += _combined(asked, request, values, len(plan.checks))
            continue
        cases = _drawn(asked, request, taken)
        if asked.minutes is not None:
            _last_minutes(plan, asked.minutes, cases, kept, workers)
        else:
            plan.checks += _cheapest_first(itertools.islice(cases, asked.draw or _DOZEN))
    return plan


def _title(asked: SweepRequest, request: CheckRequest, name: str) -> str:
    is_one = len(asked.requests) == 1
    return name if is_one and name else f"{request.target} {name}".rstrip()


def _combined(
    asked: SweepRequest, request: CheckRequest, values: Mapping[str, Sequence[Any]], first: int
) -> list[PlannedCheck]:
    added = list[PlannedCheck]()
    for number, options in enumerate(combinations(values), first):
        whole = replace(request, options={**request.options, **options})
        title = _title(asked, request, " ".join(titled(options)))
        added.append(PlannedCheck(title, whole, number=number, cost=cost(whole.options)))
    return _cheapest_first(added)


def _drawn(
    asked: SweepRequest, request: CheckRequest, taken: TargetSignature
) -> Iterator[PlannedCheck]:
    """Cases that are drawn for a target; black boxes are looked into in the simplest that fails alone."""
    fixed = {name: [word] for name, word in request.options.items() if name != "seed"}
    given = {"recover": [False], **fixed, **asked.varied}
    for case in drawn(taken, given, request.options.get("seed", 0)):
        title, whole = _title(asked, request, case.title), replace(request, options=case.options)
        yield PlannedCheck(title, whole, cost=cost(case.options), beyond=case.beyond)


def _last_minutes(
    plan: Plan,
    minutes: float,
    cases: Iterator[PlannedCheck],
    kept: Sequence[Report],
    workers: int,
) -> None:
    """Has a plan draw on while the minutes last that it has not spent yet."""
    seconds, sample = 60.0 * minutes, _cheapest_first(itertools.islice(cases, _BATCH))
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
    while batch := _cheapest_first(itertools.islice(stream, _BATCH)):
        yield from batch


def _cheapest_first(checks: Iterable[PlannedCheck]) -> list[PlannedCheck]:
    return sorted(checks, key=lambda planned: planned.cost)


def cost(options: Mapping[str, Any]) -> float:
    """About how long a case takes, where 1 is what each takes however small it is."""
    packed = str(options.get("cu_seqlens", "")).rpartition(",")[2]
    length = int(packed) if packed.isdigit() else options.get("seqlen", Case.seqlen_q)
    rows, keys = options.get("seqlen_q", length), options.get("seqlen_k", length)
    heads = options.get("heads", Case.heads) * (1 if packed else options.get("batch", Case.batch))
    tiles = math.ceil(rows / Case.block_m) * math.ceil(keys / Case.block_n)
    return 1.0 + float(heads * tiles) / 16
