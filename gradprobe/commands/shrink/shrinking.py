"""Shrinking: the search as a plan of the suite's runner, the worker of its quick tries, and what comes of it."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ...inputs.history import CheckRequest
from ...inputs.options import parse
from ...model import failures
from ...model.assignment import TENSORS, Assigned, parse_run
from ...model.case import Case
from ...model.failures import Failure, Refusal, TargetFailure, UsageFailure
from ...model.layout_run import MISMATCH
from ...model.report import Report
from ...pipeline.probe import measured_so_far
from ...pipeline.reported import report_of
from ...pipeline.resolve import Problem, resolve_problem
from ...probing.experiment import experiment_of
from ...probing.runs import records_of
from ...runtime.backend import choose_threads, make_interpreter_right
from ..suite.case_factors import PACKING, TargetSignature, described
from ..suite.checking import FACTORY, Checker, Checks, Setting, check_each
from ..suite.outcome import CheckMessages, CheckOutcome, of_error
from ..suite.plan import PlannedCheck
from .case_words import Facts
from .search import CRASHED, ShrinkSearch, ShrunkCase, TriedCase, symptom_of
from .simpler_cases import Simplification, settled

# Words that are no part of a case, and stand in every try as they were asked for.
_AS_ASKED = ("device", "recover")


@dataclass(frozen=True)
class PlannedTry(PlannedCheck):
    """A case that is run without second runs, a look inside, or a search for causes."""

    case: Case | None = None
    """None for a whole check."""


class TryChecker(Checker):
    """`TryChecker(setting)(planned)`: the target is imported once for all quick tries."""

    _problem: Problem | None = None

    def __call__(self, planned: PlannedCheck) -> CheckOutcome:
        if not isinstance(planned, PlannedTry) or planned.case is None:
            return super().__call__(planned)
        try:
            with contextlib.redirect_stdout(sys.stderr):
                return self._tried(planned, planned.case)
        except Exception as error:
            return of_error(planned, error, CheckMessages(), 0.0, "")

    def _tried(self, planned: PlannedTry, case: Case) -> CheckOutcome:
        self._problem = self._problem or resolve_problem(planned.request)
        make_interpreter_right(case)
        choose_threads(case)
        about = (case, self._problem.target, self._problem.reference)
        experiment = experiment_of(*about, command=planned.repro_command)
        records = list(records_of(experiment))
        if not any(record.run.measured for record in records):
            raise Refusal("; ".join(record.run.skipped or "" for record in records))
        return CheckOutcome(planned.request, report_of(measured_so_far(experiment, records)))


@dataclass(frozen=True)
class ShrinkResult:
    """What a target's case came to."""

    request: CheckRequest
    """The target with the fewest words of the shrunken case."""
    looked: Report
    """Of the case asked for."""
    case: Case | None
    """That, where it fails or matches."""
    shrunk: ShrunkCase | None = None
    """None where the case asked for matches."""
    last: Report | None = None
    """A whole check of the shrunken case; None where that crashes the process that runs it."""
    tries: int = 0
    seconds: float = 0.0

    @property
    def exit_code(self) -> int:
        """0 where nothing was to shrink, 1 where the small case fails; 3 where it crashes, which is no mismatch."""
        if self.shrunk is None:
            return 0
        return TargetFailure.exit_code if self.shrunk.symptom == CRASHED else 1


Told = Callable[[Case, Simplification | None, int, Mapping[str, Any]], object]
"""Told of the case that fails before the search, and of each step taken, with the number of tries so far and the words
that give the case."""


def shrink(
    request: CheckRequest,
    *,
    most: int,
    setting: Setting = Setting(isolate=False),  # noqa: B008 - it is frozen
    told: Told = lambda case, step, count, words: None,
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
    trying = replace(setting, checker=f"{__name__}:TryChecker", fix_budget=0)
    (takes,) = described([request], setting.timeout, isolate=setting.isolate)
    with contextlib.closing(Checks(trying)) as checks:
        found = _shrunken(request, takes, most, told, checks)
    if found.shrunk and found.shrunk.symptom != CRASHED:
        whole = PlannedCheck("", found.request)
        (last,) = check_each([whole], replace(setting, checker=FACTORY))
        found = replace(found, last=last.report)
    return replace(found, seconds=time.perf_counter() - start)


def _shrunken(
    request: CheckRequest, takes: TargetSignature | None, most: int, told: Told, checks: Checks
) -> ShrinkResult:
    facts = _facts_of(request, takes)
    looked = checks.make(PlannedTry("", request)).report
    wanted, case = symptom_of(looked), None
    if looked.case is not None:
        case = settled(replace(looked.case, dots=parse(request.options).get("dots")))
    if wanted is None:
        _raise_error_of(looked)
        return ShrinkResult(request, looked, case)
    start = case or facts.resolved(request.options)

    def request_of(case: Case) -> CheckRequest:
        return replace(request, options=facts.fewest_words(case) or {})

    def attempt(case: Case, in_full: bool) -> Report:
        planned = PlannedTry("", request_of(case), case=None if in_full else case)
        return checks.make(planned).report

    def tell(case: Case, step: Simplification | None, count: int) -> None:
        told(case, step, count, request_of(case).options)

    quick = attempt(start, False)
    plain, laid = symptom_of(quick), quick.runs[0].laid if quick.runs else ()
    names = {"do", *takes.names} if takes else {"do"}
    search = ShrinkSearch(
        lambda case, in_full: TriedCase.of(attempt(case, in_full)),
        [each.name for each in laid] or [name for name in TENSORS if name in names],
        replace(plain, fault=wanted.fault) if plain else wanted,
        plain is None,
        most,
        has_words=lambda case: facts.fewest_words(case) is not None,
        told=lambda step: tell(step.case, step, search.count),
    )
    tell(start, None, 0)
    shrunk = search.run(start, _failing(quick))
    return ShrinkResult(request_of(shrunk.case), looked, start, shrunk, tries=search.count)


def _facts_of(request: CheckRequest, takes: TargetSignature | None) -> Facts:
    kept = {name: word for name, word in request.options.items() if name in _AS_ASKED}
    if takes is None:
        return Facts("softmax", "cpu", False, False, kept)
    packs = bool(takes.names & PACKING) and "seqlens" not in takes.names
    return Facts(takes.family, takes.device, "bias" in takes.names, packs, kept)


def _failing(report: Report) -> list[Assigned]:
    """The layout of the first run that fails, where it can be asked for alone."""
    run = report.failing
    if run is None:
        return []
    return [tuple(pair for pair in parse_run(run.layout) if pair[1] != "contiguous")]


def _raise_error_of(report: Report) -> None:
    if (error := report.error) is not None:
        made: type[Failure] = getattr(failures, error.kind, Failure)
        raise made(error.message, error.way_out, (*error.details, *error.stack.splitlines()))


class Shrinker:
    """`Shrinker(tries)(request)` is the report of the smallest case that is found; None where nothing smaller is."""

    def __init__(self, tries: int) -> None:
        self._tries = tries

    def __call__(self, request: CheckRequest) -> Report | None:
        report = shrink(request, most=self._tries).last
        return report if report is not None and report.verdict == MISMATCH else None
