"""A sweep as a plan: every combination of the values of options, of each target the cheapest first."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any

from ...model.failures import UsageFailure
from .journal import SweepRequest
from .plan import Plan, PlannedCheck, titled

# Days of checks.
LARGEST = 10_000


def combinations(values: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """The options of each case; the last option varies fastest.

    Raises:
        UsageFailure: there are more than anybody waits for.
    """
    count = math.prod(map(len, values.values()))
    if count > LARGEST:
        words = f"sweep: {count:,} cases are more than {LARGEST:,}"
        raise UsageFailure(words, "give fewer values")
    rows = itertools.product(*values.values())
    return [dict(zip(values, row, strict=True)) for row in rows]


def sweep_plan(asked: SweepRequest) -> Plan:
    """The cases of a sweep. Raises UsageFailure where there are too many."""
    plan = Plan()
    for request in asked.requests:
        cases = list[PlannedCheck]()
        for number, options in enumerate(combinations(asked.varied), len(plan.checks)):
            title = " ".join(titled(options))
            if len(asked.requests) > 1 or not title:
                title = f"{request.target} {title}".rstrip()
            whole = replace(request, options={**request.options, **options})
            cases.append(PlannedCheck(title, whole, number=number))
        plan.checks += sorted(cases, key=attrgetter("cost"))
    return plan
