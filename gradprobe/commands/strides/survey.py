"""Survey: every trial of a target, run in child processes so that a layout that crashes costs no other; its report."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from msgspec import structs

from ...inputs.history import CheckRequest
from ...model.allowance import LAST_RESORT, Allowance
from ...model.failures import TargetFailure
from ...model.layout_run import ALONE, MATCH, MISMATCH, PROGRAM, Run, SurveyedLayout, add_counts
from ...model.memory_finding import ERROR, WARNING
from ...model.report import Culprit, Diagnosis, Report, SurveySummary
from ...processes import TaskResult, run_each
from ...processes.ended import DEVICE
from ..suite.interpreted import for_the_interpreter
from .culprits import Hazard, hazards
from .trials import EXPANDED, NOT_RUN, BenchSetup, FailedTrial, SurveyPlan, TrialResult

# More than any case has trials. Their true number comes with the plan.
_MOST = 10_000


@dataclass(frozen=True)
class Survey:
    """The results so far, or in the end."""

    plan: SurveyPlan
    results: tuple[TrialResult, ...]
    """The contiguous one first."""
    culprits: tuple[Culprit, ...]
    repro_command: str
    seconds: Mapping[str, float]
    diagnoses: tuple[Diagnosis, ...] = ()
    """Why the simplest wrong layout is."""
    known: tuple[str, ...] = ()
    """Of that layout, sentences about what no named diagnosis explains."""

    @property
    def verdict(self) -> str:
        # One that ended its process is wrong where it is known what its kernels did to memory.
        wrong = [each for each in self.results if each.verdict == MISMATCH or each.memory]
        if not all(each.is_warning for each in wrong):
            return MISMATCH
        return NOT_RUN if self.having(NOT_RUN) else MATCH

    @property
    def exit_code(self) -> int:
        return {MATCH: 0, MISMATCH: 1, NOT_RUN: 3}[self.verdict]

    def having(self, verdict: str) -> list[TrialResult]:
        """The trials of one verdict that are no warnings."""
        return [
            result
            for result in self.results
            if result.verdict == verdict and not result.is_warning
        ]

    @property
    def warnings(self) -> list[Hazard]:
        """The hazards that are shown and do not count."""
        return [hazard for hazard in hazards(self.results) if hazard.severity == WARNING]

    @property
    def report(self) -> Report:
        """A run for each layout, and under "strides" what is a survey's own."""
        runs = tuple(map(_run, self.results))
        firsts = (run.first_mismatch for run in runs if run.severity != WARNING)
        return structs.replace(
            self.plan.report,
            verdict=self.verdict,
            runs=runs,
            first_mismatch=next(filter(None, firsts), None),
            compared=add_counts(run.compared for run in runs),
            warnings=tuple(hazard.warned for hazard in self.warnings),
            reproduce=self.repro_command,
            seconds={stage: round(took, 4) for stage, took in self.seconds.items()},
            strides=self._summary,
            diagnoses=self.diagnoses,
            known=self.known,
        )

    @property
    def _summary(self) -> SurveySummary:
        return SurveySummary(
            layouts=len(self.plan.trials),
            culprits=self.culprits,
            findings=tuple(
                replace(finding, layout=each.trial.title)
                for each in self.results
                for finding in each.memory
            ),
        )


def _run(result: TrialResult) -> Run:
    trial, severity = result.trial, result.severity if result.is_failing else None
    run = result.run or Run(layout=trial.title, verdict=result.verdict)
    tried = SurveyedLayout(
        kind=trial.kind,
        row=trial.row,
        layout=trial.layout,
        thorough=trial.thorough,
        hazard=result.hazard,
    )
    run = structs.replace(
        run, how=result.how or None, copied=tuple(result.copied), severity=severity, tried=tried
    )
    return (
        structs.replace(run, error=result.words, memory=result.memory)
        if result.verdict == NOT_RUN
        else run
    )


def survey(
    request: CheckRequest,
    repro_command: str,
    *,
    given: frozenset[str],
    fast: bool,
    timeout: float | None,
    workers: int = 1,
    fix_budget: int = 0,
    told: Callable[[Survey], None],
    echo: Callable[[str], object],
) -> Survey:
    """Tries a target under every layout.

    Args:
        repro_command: the command line that repeats it.
        given: the options that a user gave. The others may be replaced by what the target takes.
        fast: whether to try fewer layouts of single tensors, most of them only with NaN around.
        timeout: seconds for one trial; None for no limit.
        workers: processes that share the trials.
        fix_budget: how many edits of the target are tried, in a third of the time for all trials at most.
        told: called with what is known after each trial.
        echo: called with what the target prints.

    Raises:
        Failure: the target cannot be run contiguous.
    """
    start, setup = time.perf_counter(), BenchSetup(request, repro_command, fast, given)
    plan: SurveyPlan | None = None
    came: dict[int, TaskResult] = {}
    each = functools.partial(run_each, f"{__package__}.worker:Trials", timeout=timeout, echo=echo)
    ends = each(setup, range(_MOST), workers=workers)
    with contextlib.closing(ends):  # type: ignore[type-var]
        for ended in ends:
            came[ended.index] = ended
            plan = _plan_of(came[0]) if plan is None and 0 in came else plan
            if plan is not None:
                found = _so_far(plan, came, repro_command, time.perf_counter() - start)
                if found.results:  # the plan alone gives no verdict
                    told(found)
                if len(found.results) == len(plan.trials):
                    break
    crashes = (
        {index: ended.crash for index, ended in came.items() if index and ended.crash}
        if plan
        else {}
    )
    lost = [
        plan.trials[index - 1].title
        for index, crash in crashes.items()
        if plan and crash.kind == DEVICE
    ]
    blaming = replace(setup, request=for_the_interpreter(request)) if lost else setup
    if lost:
        seen = {ended.item: ended for ended in each(blaming, lost)}
        results = (_explained(result, seen.get(result.trial.title)) for result in found.results)
        found = replace(found, results=tuple(results))
        told(found)
    # Those that ended their processes are made again without their hazards, to see what is to blame.
    ended_by = [result for result in found.having(NOT_RUN) if result.trial.hazard]
    again = each(setup, ended_by) if ended_by else ()
    weighed = {
        ended.item.trial.title: ended.result for ended in again if ended.result is not None
    }
    found = replace(
        found, results=tuple(weighed.get(result.trial.title, result) for result in found.results)
    )
    limit = None if timeout is None else timeout * len(found.results)
    found = replace(
        found, culprits=_blamed(found, functools.partial(each, blaming, timeout=limit))
    )
    edits = Allowance(fix_budget, LAST_RESORT if limit is None else limit / 3)
    diagnoses, known = _diagnosed(found, edits, functools.partial(each, blaming, timeout=limit))
    found = replace(found, diagnoses=diagnoses, known=known)
    return replace(found, seconds={"total": time.perf_counter() - start})


def _so_far(
    plan: SurveyPlan, came: Mapping[int, TaskResult], repro_command: str, seconds: float
) -> Survey:
    """The results that have come, in the order of the plan."""
    numbers = [number for number in range(1, len(plan.trials) + 1) if number in came]
    results = [
        came[number].result
        or TrialResult(plan.trials[number - 1], NOT_RUN, words=came[number].why)
        for number in numbers
    ]
    return Survey(
        plan, tuple(results), (), f"{repro_command} {plan.more}".rstrip(), {"total": seconds}
    )


def _plan_of(ended: TaskResult) -> SurveyPlan:
    if ended.raised is not None:
        raise ended.raised.failure
    if ended.crash is not None:
        raise TargetFailure(
            f"the target crashed on contiguous tensors: {ended.crash.words}{ended.crash.where}"
        )
    assert isinstance(ended.result, SurveyPlan)
    return ended.result


def _explained(crashed: TrialResult, seen: TaskResult | None) -> TrialResult:
    """The result. Of a layout that cost the GPU, it holds what the kernels do to memory in the interpreter."""
    if seen is None:
        return crashed
    watched = seen.result if isinstance(seen.result, TrialResult) else None
    memory = watched.memory if watched else ()
    if watched and memory:
        return replace(crashed, memory=memory, hazard=watched.hazard, severity=watched.severity)
    why = seen.why or (watched.words if watched else "")
    shows = f"could not be run: {why}" if why else "shows no access that a GPU would not allow"
    return replace(
        crashed, words=f"{crashed.words}; the same layout run small on the CPU {shows}"
    )


def _blamed(
    survey: Survey, each: Callable[[Sequence[Any]], Iterator[TaskResult]]
) -> tuple[Culprit, ...]:
    """The culprits, where layouts are to blame. A crash during the search changes no verdict."""
    known = tuple(
        hazard.culprit for hazard in hazards(survey.results) if hazard.severity == ERROR
    )
    failing = [result for result in survey.results if result.is_failing]
    if all(result.hazard for result in failing):
        return known
    # Copies hide a fault of strides, and so do values that are all equal.
    bare = [result for result in survey.having(MATCH) if not result.copied]
    fine = [
        result
        for result in bare
        if all(layout != EXPANDED for _, layout in result.trial.assigned)
    ]
    titles = tuple([result.trial.title for result in results] for results in (failing, fine))
    return (*(next(each([titles])).result or ()), *known)


def _diagnosed(
    survey: Survey, edits: Allowance, each: Callable[[Sequence[Any]], Iterator[TaskResult]]
) -> tuple[tuple[Diagnosis, ...], tuple[str, ...]]:
    """Why the first layout with wrong numbers that lays one tensor, or all, otherwise is wrong, and what is known."""
    wrong = (
        one
        for one in survey.results
        if one.is_failing and one.run is not None and one.run.has_wrong_elements
    )
    plain = sorted(
        (one for one in wrong if one.trial.kind != PROGRAM),
        key=lambda result: result.trial.kind != ALONE,
    )
    sought = [FailedTrial(one.trial.title, edits) for one in plain[:1]]
    return next((ended.result for ended in each(sought) if ended.result), ((), ()))
