"""Failures of several checks, folded by their cause: each once, with what sets its cases apart, and a smallest case."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence

from msgspec import structs

from ...inputs.history import CheckRequest
from ...inputs.options import parse
from ...model.allowance import LAST_RESORT
from ...model.case import Case
from ...model.documents import FailureGroup
from ...model.failures import UsageFailure
from ...model.layout_run import CRASHED, FAILED, MATCH, MISMATCH
from ...model.report import Report
from ...model.resolution import resolve
from ...processes import run_each
from .traits import Instance, set_apart

# By name: the search is a plan of this folder's runner.
SHRINKER = "gradprobe.commands.shrink.shrinking:Shrinker"


def folded_by_cause(
    reports: Sequence[Report], closer: Report | None = None
) -> tuple[FailureGroup, ...]:
    """One group for each cause: the mismatches first, each kind in the order of the checks.

    Two failures have one cause where the same fault is named at the same line; where none is named, where the same
    intermediate is wrong first; and of errors, where the same happened at the same place.

    Args:
        closer: of one of them what came of a check that looked closer. A cause that it names is that of all that were
            like it before.
    """
    counted = [report for report in reports if not report.is_warning]
    numbered = sorted(counted, key=lambda report: report.number)
    found: dict[tuple[str, ...], list[Report]] = {}
    for report in numbered:
        if report.verdict in (MISMATCH, FAILED):
            found.setdefault(_key(report), []).append(report)
    if closer is not None and closer.causes:
        named: dict[tuple[str, ...], list[Report]] = {}
        for key, those in found.items():
            looked = [closer if report.number == closer.number else report for report in those]
            named.setdefault(_key(closer) if closer in looked else key, []).extend(looked)
        found = named
    cases = _CheckedCases(numbered)
    groups = sorted(found.values(), key=lambda those: those[0].verdict != MISMATCH)
    return tuple(_group(those, cases) for those in groups)


def _key(report: Report) -> tuple[str, ...]:
    """What failures of one cause have in common."""
    error = report.error
    if report.verdict != FAILED or error is None:
        return report.target.name, report.verdict, _cause(report)
    # What is the same but for its numbers is the same.
    words = re.sub(r"\d+", "0", error.words or error.message)
    return report.target.name, error.kind, str(error.file), str(error.line), words


def _cause(report: Report) -> str:
    """The fault with its line; else what is first wrong, or what the target's code raised, with its line."""
    error = report.error
    if report.causes:
        named = report.causes[0]
        where = named.where[0] if named.where else None
        at = f" at {os.path.basename(where.file)}:{where.line}" if where else ""
        return f"{named.fault}{at}"
    if report.verdict != FAILED:
        return f"{_first_wrong(report)}, no cause named"
    if error is None:
        return FAILED
    raised = re.search(r" raised (\w+)", error.message)
    place = error.details[0].partition(" in ")[0] if error.details else ""
    return f"{raised[1]} at {place}" if raised and place else error.kind


def _first_wrong(report: Report) -> str:
    """What is first wrong, in the words that follow a count of failures."""
    run = report.failing
    if run is not None and run.first_mismatch:
        return f"{run.first_mismatch.title} first"
    if run is not None and run.broken:
        return f"breaks {run.broken[0].name}"
    memory = report.memory
    return f"{memory[0].kind} {memory[0].tensor}".strip() if memory else "an error after it"


def _group(reports: Sequence[Report], cases: _CheckedCases) -> FailureGroup:
    first = reports[0]
    return FailureGroup(
        verdict=first.verdict,
        cause=_cause(first),
        summary=first.causes[0].summary if first.causes else "",
        titles=tuple(report.title for report in reports),
        numbers=tuple(report.number for report in reports),
        common=cases.apart(reports),
    )


class _CheckedCases:
    """The cases of all checks, and of those that match each layout."""

    def __init__(self, reports: Sequence[Report]) -> None:
        self._family = next((report.case.family for report in reports if report.case), "softmax")
        cases = [case for report in reports if (case := self._of(report))]
        self._square = all(case.seqlen_q == case.seqlen_k for case in cases)
        self._matching: dict[str, list[Instance]] = {}
        """By target."""
        for report in reports:
            wrong = _wrong_layouts(report)
            right = [run.layout for run in report.runs if run.verdict == MATCH]
            those = self._matching.setdefault(report.target.name, [])
            those += self._instances(report, [layout for layout in right if layout not in wrong])

    def _of(self, report: Report) -> Case | None:
        """The case of a check, also of one that nobody got as far as making; None where there is none."""
        if report.case is not None:
            return report.case
        family = report.target.family or self._family
        try:
            return resolve({**parse(report.options), "device": "cpu"}, family, takes_bias=False)
        except UsageFailure:
            return None

    def _instances(self, report: Report, layouts: Sequence[str]) -> list[Instance]:
        """A report's case in some layouts; nothing where the case is not known."""
        case, number = self._of(report), report.number
        if case is None:
            return []
        named = dict.fromkeys(layouts)
        return [Instance.of(number, case, layout, square=self._square) for layout in named]

    def apart(self, failing: Sequence[Report]) -> tuple[str, ...]:
        """What sets these failures apart; nothing where the case of one is not known."""
        instances = list[Instance]()
        for report in failing:
            # Of a check that came to no layout, which it was is not known.
            layouts = _wrong_layouts(report) or [""] * (report.verdict == FAILED)
            found = self._instances(report, layouts)
            if not found:
                return ()
            instances += found
        return set_apart(instances, self._matching[failing[0].target.name])


def _wrong_layouts(report: Report) -> list[str]:
    """Those in which it fails, each named as the first run in it."""
    wrong = [run for run in report.runs if run.verdict in (MISMATCH, FAILED, CRASHED)]
    return [run.layout.partition(", ")[0] for run in wrong]


def with_smallest(
    groups: Sequence[FailureGroup], requests: Mapping[int, CheckRequest], tries: int, workers: int
) -> tuple[FailureGroup, ...]:
    """The groups of mismatches with a smallest case each, as far as it is found in so many tries, shared by all.

    Args:
        requests: of each check, by its number.
    """
    found, wanted, groups = list(groups), list[int](), tuple(groups)
    for at, group in enumerate(groups):
        if group.is_mismatch and group.numbers[0] in requests:
            wanted.append(at)
    share = math.ceil(tries / max(1, len(wanted)))
    asked = [requests[groups[at].numbers[0]] for at in wanted]
    if not (share and asked):
        return groups
    for ended in run_each(SHRINKER, share, asked, timeout=LAST_RESORT, workers=workers):
        at = wanted[ended.index]
        found[at] = structs.replace(found[at], shrunk=ended.result)
    return tuple(found)
