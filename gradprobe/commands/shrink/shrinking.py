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
from ...model.layout_run import FAILED, MISMATCH
from ...model.report import Report
from ...pipeline.probe import measured_so_far
from ...pipeline.reported import report_of
from ...pipeline.resolve import Problem, resolve_problem
from ...probing.experiment import experiment_of
from ...probing.runs import records_of
from ...runtime.backend import choose_threads, make_interpreter_right
from ..suite.checking import FACTORY, Checker, Setting, check_each
from ..suite.outcome import CheckMessages, CheckOutcome, of_error
from ..suite.plan import Plan, PlannedCheck, Steps
from ..suite.runner import Runner
from ..suite.takes import TargetSignature, described
from .case_words import Facts
from .program import Script, script_of
from .search import CRASHED, ShrinkSearch, ShrunkCase, TriedCase, symptom_of
from .simpler_cases import Simplification, settled

# Words that are no part of a case, and stand in every try as they were asked for.
_AS_ASKED = ("device", "recover")


@dataclass(frozen=True)
class PlannedTry(PlannedCheck):
    """A case that is run without second runs, a look inside, or a search for causes."""

    case: Case | None = None
    """None for a whole check."""
    scripted: bool = False
    """Whether what shows the fault without gradprobe is made too."""


@dataclass(frozen=True)
class TryOutcome(CheckOutcome):
    script: Script | None = None
    no_script: str = ""
    """Why there is none."""


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
        runs = [record.run for record in records]
        if not any(run.measured for run in runs):
            raise Refusal("; ".join(run.skipped or "" for run in runs))
        report = report_of(measured_so_far(experiment, records))
        script, why = None, ""
        if planned.scripted:
            script, why = script_of(report, runs[0] if len(runs) == 1 else None, experiment)
        return TryOutcome(planned.request, report, script, why)


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
    script: Script | None = None
    no_script: str = ""
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


class _Hunt:
    """One search, as the steps of a plan."""

    def __init__(
        self, request: CheckRequest, takes: TargetSignature | None, most: int, told: Told
    ) -> None:
        self._request, self._most, self._told = request, most, told
        names = takes.names if takes else frozenset[str]()
        packs = bool(names & {"cu_seqlens", "cu_seqlens_q"}) and "seqlens" not in names
        kept = {name: word for name, word in request.options.items() if name in _AS_ASKED}
        family, device = (takes.family, takes.device) if takes else ("softmax", "cpu")
        self.facts = Facts(family, device, "bias" in names, packs, kept)
        self._names = [name for name in TENSORS if name in {"do", *names}]
        self.looked = Report(verdict=FAILED)
        self.case: Case | None = None
        self.shrunk: ShrunkCase | None = None
        self.tries = 0

    def steps(self) -> Steps[PlannedCheck, CheckOutcome]:
        self.looked = (yield [PlannedTry("", self._request)]).report
        wanted = symptom_of(self.looked)
        if self.looked.case is not None:
            dots = parse(self._request.options).get("dots")
            self.case = settled(replace(self.looked.case, dots=dots))
        if wanted is None:
            return
        if self.case is None:
            self.case = self.facts.resolved(self._request.options)
        quick = (yield [self._planned(self.case, False)]).report
        plain, laid = symptom_of(quick), quick.runs[0].laid if quick.runs else ()
        tensors = [each.name for each in laid] or self._names
        search = ShrinkSearch(
            tensors,
            replace(plain, fault=wanted.fault) if plain else wanted,
            plain is None,
            self._most,
            has_words=lambda case: self.facts.fewest_words(case) is not None,
            told=lambda step: self._tell(step.case, step, search.count),
        )
        self._tell(self.case, None, 0)
        tries = search.run(self.case, _failing(quick))
        try:
            case, in_full = next(tries)
            while True:
                outcome = yield [self._planned(case, in_full)]
                self.tries = search.count
                case, in_full = tries.send(TriedCase.of(outcome.report))
        except StopIteration as over:
            self.shrunk = over.value

    def _planned(self, case: Case, in_full: bool) -> PlannedTry:
        request = self.request_of(case)
        return PlannedTry("", request, case=None if in_full else case)

    def request_of(self, case: Case) -> CheckRequest:
        return replace(self._request, options=self.facts.fewest_words(case) or {})

    def _tell(self, case: Case, step: Simplification | None, count: int) -> None:
        self._told(case, step, count, self.request_of(case).options)


def _failing(report: Report) -> list[Assigned]:
    """The layout of the first run that fails, where it can be asked for alone."""
    run = report.failing
    if run is None:
        return []
    pairs = [pair for pair in parse_run(run.layout) if pair[1] != "contiguous"]
    return [tuple(pairs)]


def shrink(
    request: CheckRequest,
    *,
    most: int,
    setting: Setting = Setting(isolate=False),  # noqa: B008 - it is frozen
    scripted: bool = True,
    told: Told = lambda case, step, count, words: None,
) -> ShrinkResult:
    """The smallest case that fails in the same way as the one asked for.

    Args:
        most: how many cases may be tried.
        setting: where each has a process of its own, a crash is a way to fail; edits are tried on the smallest case.
        scripted: whether a script that shows the fault without gradprobe is made.

    Raises:
        UsageFailure: the values come from a file, so that no others can be tried.
        Failure: whatever keeps the case asked for from being run.
    """
    if "inputs" in request.options:
        words = "--inputs: only a case whose values are drawn can be made smaller"
        raise UsageFailure(words, "drop --inputs")
    start, trying = (
        time.perf_counter(),
        replace(setting, checker=f"{__name__}:TryChecker", fix_budget=0),
    )
    (takes,) = described([request], setting.timeout, isolate=setting.isolate)
    hunt = _Hunt(request, takes, most, told)
    steps = hunt.steps()
    for _ in Runner(Plan(list(next(steps)), steps), trying).outcomes():
        pass
    if hunt.shrunk is None:
        _raise_error_of(hunt.looked)
        seconds = time.perf_counter() - start
        return ShrinkResult(request, hunt.looked, hunt.case, seconds=seconds)
    small = hunt.request_of(hunt.shrunk.case)
    found = ShrinkResult(small, hunt.looked, hunt.case, hunt.shrunk, tries=hunt.tries)
    if hunt.shrunk.symptom != CRASHED:
        (last,) = check_each([PlannedCheck("", small)], replace(setting, checker=FACTORY))
        found = replace(found, last=last.report)
    if scripted and found.last is not None:
        planned = PlannedTry("", small, case=hunt.shrunk.case, scripted=True)
        (made,) = check_each([planned], trying)
        if isinstance(made, TryOutcome):
            found = replace(found, script=made.script, no_script=made.no_script)
    return replace(found, seconds=time.perf_counter() - start)


def _raise_error_of(report: Report) -> None:
    if (error := report.error) is not None:
        made: type[Failure] = getattr(failures, error.kind, Failure)
        raise made(error.message, error.way_out, (*error.details, *error.stack.splitlines()))


class Shrinker:
    """`Shrinker(tries)(request)` is the report of the smallest case that is found; None where nothing smaller is."""

    def __init__(self, tries: int) -> None:
        self._tries = tries

    def __call__(self, request: CheckRequest) -> Report | None:
        report = shrink(request, most=self._tries, scripted=False).last
        return report if report is not None and report.verdict == MISMATCH else None
