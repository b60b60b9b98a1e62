"""Shrinking: the search on checks of one process, and what comes of it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from ...inputs.history import CheckRequest
from ...model import failures
from ...model.assignment import TENSORS, Assigned, parse_run
from ...model.failures import Failure, TargetFailure, UsageFailure
from ...model.layout_run import MISMATCH
from ...model.report import Report
from ..suite.case_factors import PACKING
from ..suite.checking import FACTORY, Checks, Setting, check_each
from ..suite.plan import PlannedCheck, TargetSignature, described
from ..suite.tries import TRIES, PlannedTry
from .search import CRASHED, ShrinkSearch, Symptom, symptom_of, tried_of
from .simpler_cases import Facts, WordedCase


@dataclass(frozen=True)
class ShrinkResult:
    """What a target's case came to."""

    request: CheckRequest
    """The target with the words of the shrunken case."""
    looked: Report
    """Of the case asked for."""
    case: WordedCase
    """That one."""
    shrunk: WordedCase | None = None
    """None where the case asked for matches."""
    symptom: Symptom | None = None
    needs: tuple[str, ...] = ()
    complete: bool = True
    """Whether every simpler case was tried."""
    last: Report | None = None
    """A whole check of the shrunken case; None where that crashes the process that runs it."""
    tries: int = 0
    seconds: float = 0.0

    @property
    def exit_code(self) -> int:
        """0 where nothing was to shrink, 1 where the small case fails; 3 where it crashes, which is no mismatch."""
        if self.symptom is None:
            return 0
        return TargetFailure.exit_code if self.symptom == CRASHED else 1


Told = Callable[[WordedCase, str, int], object]
"""Told of the case that fails before the search, and of each one after it: how it differs from the one before ("with
heads=1"; "" of the first), and the number of tries so far."""


def shrink(
    request: CheckRequest,
    *,
    most: int,
    setting: Setting = Setting(isolate=False),  # noqa: B008 - it is frozen
    told: Told = lambda case, change, count: None,
) -> ShrinkResult:
    """The smallest case that fails in the same way as the one asked for.

    Args:
        most: how many cases may be tried.
        setting: where each has a process of its own, a crash is a way to fail; edits are tried on the smallest case.

    Raises:
        UsageFailure: the values come from a file, so that no others can be tried.
        Failure: whatever keeps the case asked for from being run.
    """
    if "inputs" in request.options:
        words = "--inputs: only a case whose values are drawn can be made smaller"
        raise UsageFailure(words, "drop --inputs")
    start = time.perf_counter()
    trying = replace(setting, checker=TRIES, fix_budget=0)
    (takes,) = described([request], setting.timeout, isolate=setting.isolate)
    with contextlib.closing(Checks(trying)) as checks:
        found = _shrunken(request, takes, most, told, checks)
    if found.symptom not in (None, CRASHED):
        whole = PlannedCheck("", found.request)
        (last,) = check_each([whole], replace(setting, checker=FACTORY))
        found = replace(found, last=last.report)
    return replace(found, seconds=time.perf_counter() - start)


def _shrunken(
    request: CheckRequest, takes: TargetSignature | None, most: int, told: Told, checks: Checks
) -> ShrinkResult:
    outcome = checks.make(PlannedTry("", request))
    looked, wanted, facts = outcome.report, symptom_of(outcome.report), _facts_of(takes)
    if wanted is None and (error := looked.error) is not None:
        made: type[Failure] = getattr(failures, error.kind, Failure)
        raise made(error.message, error.way_out, (*error.details, *error.stack.splitlines()))
    start = facts.in_full(outcome.request.options)
    if wanted is None:
        return ShrinkResult(request, looked, start)

    def attempt(case: WordedCase, in_full: bool) -> Report:
        asked = replace(request, options=case.words)
        return checks.make(PlannedTry("", asked, case=None if in_full else case.case)).report

    quick = attempt(start, False)
    plain, laid = symptom_of(quick), quick.runs[0].laid if quick.runs else ()
    names = {"do", *takes.names} if takes else {"do"}
    tensors = [each.name for each in laid] or [name for name in TENSORS if name in names]
    search = ShrinkSearch(
        lambda case, in_full: tried_of(attempt(case, in_full)),
        replace(facts, tensors=tensors),
        replace(plain, fault=wanted.fault) if plain else wanted,
        plain is None,
        most,
        lambda case, step: told(step, case.beside(step)[1], search.count),
    )
    told(start, "", 0)
    shrunk = search.run(start, _failing(quick))
    return ShrinkResult(
        replace(request, options=shrunk.words),
        looked,
        start,
        shrunk,
        search.wanted,
        tuple(search.needs(shrunk)),
        search.complete,
        tries=search.count,
    )


def _facts_of(takes: TargetSignature | None) -> Facts:
    if takes is None:
        return Facts("softmax", "cpu", False, False)
    packs = bool(takes.names & PACKING) and "seqlens" not in takes.names
    return Facts(takes.family, takes.device, "bias" in takes.names, packs)


def _failing(report: Report) -> Assigned:
    """The layout of the first run that fails, as it can be asked for alone."""
    assigned = parse_run(report.failing.layout) if report.failing else ()
    return tuple(pair for pair in assigned if pair[1] != "contiguous")


class Shrinker:
    """`Shrinker(tries)(request)` is the report of the smallest case that is found; None where nothing smaller is."""

    def __init__(self, tries: int) -> None:
        self._tries = tries

    def __call__(self, request: CheckRequest) -> Report | None:
        report = shrink(request, most=self._tries).last
        return report if report is not None and report.verdict == MISMATCH else None
