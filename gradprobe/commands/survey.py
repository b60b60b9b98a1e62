"""Strides: a target with each tensor in each layout, alone, all at once and as programs lay them; its report."""

import math
import shlex
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from msgspec import structs

from ..inputs.history import CheckRequest
from ..inputs.options import flags
from ..inputs.tensor_layouts import NEVER_EXPANDED, VECTORS
from ..model.assignment import LAYOUTS, SCALED, TENSORS, Assigned, run_name
from ..model.layout_run import (
    ALONE,
    FAILED,
    MATCH,
    MISMATCH,
    PROGRAM,
    SKIPPED,
    TOGETHER,
    Run,
    SurveyedLayout,
    add_counts,
)
from ..model.memory_finding import ERROR, HUGE, OUTSIDE, WARNING, WarningNote
from ..model.number import listed
from ..model.report import Report, SurveySummary
from .suite.checking import FACTORY, Setting, check_each
from .suite.outcome import CheckOutcome
from .suite.plan import Plan, PlannedCheck, Steps
from .suite.runner import Runner
from .suite.tries import TRIES, PlannedTry, TryOutcome

CONTIGUOUS, EXPANDED = LAYOUTS[0], "expanded"
# Run with either fill even when there is little time: strides that are mixed up show in the first, in the second where
# a target takes no last stride but 1, and offsets that overflow in the third.
_THOROUGH = (CONTIGUOUS, "distinct", "distinct-unit", HUGE)
# What is tried of dO alone then, and of no other tensor.
_FAST = ("blhd", "distinct")
# Elements of one tensor that an offset of 32 bits still reaches.
_NARROW = 2**31
# How programs lay tensors, by layout. The last save O, and are tried where the target takes it.
_OF_O = 2
_PROGRAMS = {
    "packed qkv, dO a [B, L, H, D] view": {"packed": "q k v dq dk dv", "blhd": "do o"},
    "packed kv, q and dO [B, L, H, D] views": {"packed": "k v dk dv", "blhd": "q do o dq"},
    "out.sum() of [B, L, H, D] views": {"blhd": "q k v o", EXPANDED: "do"},
    "[B, L, H, D] views, dO contiguous": {"blhd": "q k v o"},
    "O saved as a [B, L, H, D] view, dO contiguous": {"blhd": "o"},
    "O saved contiguous, dO a [B, L, H, D] view": {"blhd": "do"},
}


@dataclass(frozen=True)
class LayoutTrial:
    assigned: Assigned
    """Of one tensor alone, or of "all"; of each where a program lays them so."""
    program: str = ""
    thorough: bool = True
    """Whether it is run twice, in guard bands of NaN and of large numbers."""
    severity: str = WARNING
    """Of a failure by offsets beyond 2^31."""

    @property
    def title(self) -> str:
        return self.program or run_name(self.assigned)

    @property
    def tried(self) -> SurveyedLayout:
        if self.program:
            return SurveyedLayout(kind=PROGRAM, thorough=self.thorough)
        ((row, layout),) = self.assigned
        kind = TOGETHER if row == "all" else ALONE
        return SurveyedLayout(kind=kind, row=row, layout=layout, thorough=self.thorough)


def trials_of(
    shapes: Mapping[str, tuple[int, ...]], *, fast: bool, strict: bool = False
) -> tuple[LayoutTrial, ...]:
    """All trials of tensors of these shapes: the contiguous one, then all at once, which shows most.

    `fast`: dO is the one tensor that is tried alone, and hardly any trial is thorough. An offset beyond 2^31 is no
    warning where a tensor is itself that large, or with `strict`.
    """
    is_large = any(math.prod(shape) > _NARROW for shape in shapes.values())
    trials = [LayoutTrial((("all", layout),)) for layout in LAYOUTS]
    for title, laid in _PROGRAMS.items() if "o" in shapes else [*_PROGRAMS.items()][:-_OF_O]:
        pairs = ((name, layout) for layout, names in laid.items() for name in names.split())
        trials.append(LayoutTrial(tuple(pair for pair in pairs if pair[0] in shapes), title))
    for name, shape in shapes.items():
        for layout in LAYOUTS[1:] if not fast else _FAST if name == "do" else ():
            if _moves(name, shape, layout):
                trials.append(LayoutTrial(((name, layout),)))
    for at, trial in enumerate(trials):
        thorough = not fast or trial.title in _THOROUGH
        severity = ERROR if strict or is_large else WARNING
        trials[at] = replace(trial, severity=severity, thorough=thorough)
    return tuple(trials)


def _moves(name: str, shape: tuple[int, ...], layout: str) -> bool:
    if name in VECTORS or layout == "offset":  # right kernels take a vector for contiguous
        return layout == "offset"
    least = {"packed": 4, "blhd": 2, "distinct-unit": 2, HUGE: 2}.get(layout, 0)
    is_stuck = layout == EXPANDED and name in NEVER_EXPANDED
    return max(shape) > 1 and len(shape) >= least and not is_stuck


def planned(first: CheckOutcome, trial: LayoutTrial) -> PlannedTry:
    """One layout of the case that a first check was made of; twice, memory without values holds 7.0 the second time."""
    assert first.report.case is not None
    laid = replace(first.report.case, layouts=trial.assigned, runs=(), poison=True)
    case = replace(laid, repeat=2 if trial.thorough else 1)
    words = [f"{tensor}={layout}" for tensor, layout in trial.assigned]
    options = {**first.request.options, "layout": words}
    return PlannedTry(trial.title, replace(first.request, options=options), case=case)


def is_failing(run: Run) -> bool:
    return run.verdict in (MISMATCH, FAILED)


def weighed(run: Run, trial: LayoutTrial, is_right: bool) -> Run:
    """The run of a trial, with how much it counts where it fails; `is_right`: whether it matches once it is scaled."""
    run = structs.replace(run, layout=trial.title, tried=trial.tried)
    if not is_failing(run):
        return structs.replace(run, memory=())
    severity, found = trial.severity if is_right else ERROR, []
    for finding in run.memory:
        weight = severity if is_right else finding.severity
        found.append(replace(finding, severity=weight, layout=trial.title))
    tried = structs.replace(trial.tried, hazard=HUGE if is_right else "")
    return structs.replace(run, tried=tried, severity=severity, memory=tuple(found))


def warnings_of(runs: Iterable[Run]) -> Iterator[WarningNote]:
    those = [run for run in runs if run.tried and run.severity == WARNING]
    if not those:
        return
    # The tensors that fail alone; or those outside which an access was seen.
    rows = {run.tried.row for run in those if run.tried} - {"all"}
    seen = {found.tensor for run in those for found in run.memory if found.kind == OUTSIDE}
    names = [name for name in TENSORS if name in (rows or seen)]
    into = f" into {listed(names, 'or')}" if names else ""
    words = f"wrong once an offset{into} passes 2^31 elements: an index is held in 32 bits"
    yield WarningNote(HUGE, " ".join(names), words, tuple(run.layout for run in those))


_SCALED = ", within 2^31 elements"


@dataclass
class Survey:
    fast: bool
    start: float
    first: CheckOutcome | None = None
    trials: tuple[LayoutTrial, ...] = ()
    came: dict[str, CheckOutcome] = field(default_factory=dict)
    """By title: of the trials, in their order, and of those that are scaled."""

    def steps(self, first: PlannedTry) -> Steps:
        """The contiguous case, made of what the target takes; every layout; those that fail, scaled."""
        self.first = outcome = yield [first]
        report = outcome.report
        if report.case is None or not report.runs:
            return
        shapes = {laid.name: laid.sizes for laid in report.runs[0].laid}
        strict = bool(outcome.request.options.get("strict"))
        self.trials = trials_of(shapes, fast=self.fast, strict=strict)
        yield from self._tried([planned(outcome, trial) for trial in self.trials])
        yield from self._tried([*self.again(self.trials)])

    def again(self, trials: Iterable[LayoutTrial]) -> Iterator[PlannedTry]:
        """Those of the trials that fail with offsets beyond 2^31, scaled."""
        assert self.first is not None
        for trial in trials:
            if trial.tried.layout == HUGE and is_failing(self.run(trial)):
                assigned = tuple((tensor, SCALED) for tensor, _ in trial.assigned)
                scaled = planned(self.first, replace(trial, assigned=assigned))
                yield replace(scaled, title=trial.title + _SCALED)

    def _tried(self, checks: list[PlannedTry]) -> Steps:
        for at in range(len(checks)):
            outcome = yield () if at else checks
            self.came[outcome.title] = outcome

    def run(self, trial: LayoutTrial) -> Run:
        """What a trial came to. What the target raises where it may not, or how it ended its process, is an error."""
        outcome, again = self.came[trial.title], self.came.get(trial.title + _SCALED)
        error, is_right = outcome.report.error, again is not None and again.verdict == MATCH
        if isinstance(outcome, TryOutcome):
            taken = self.first.taken if isinstance(self.first, TryOutcome) else frozenset()
            copied = tuple(sorted(taken - outcome.taken))
            run = structs.replace(outcome.report.runs[0], copied=copied)
        else:
            assert error is not None
            words = error.words or error.message.replace(f" ({run_name(trial.assigned)})", "")
            run = Run(layout="", verdict=FAILED, error=words, memory=error.memory)
            if outcome.is_refused:
                run = Run(layout="", verdict=SKIPPED, skipped=words)
        return weighed(run, trial, is_right)

    @property
    def runs(self) -> list[Run]:
        return [self.run(trial) for trial in self.trials if trial.title in self.came]

    def report(self, repro_command: str) -> Report:
        """A run for each layout, and under "strides" what is a survey's own."""
        assert self.first is not None
        plain = structs.replace(self.first.report, title="", reproduce=repro_command)
        summary, runs = SurveySummary(layouts=len(self.trials)), self.runs
        if not self.trials:  # it cannot be run as it is
            return structs.replace(plain, strides=summary)
        counted = [run for run in runs if run.severity != WARNING]
        firsts = [run.first_mismatch for run in counted if run.first_mismatch]
        verdict = FAILED if any(run.verdict == FAILED for run in counted) else MATCH
        # One that ended its process is wrong where it is known what its kernels did to memory.
        if any(run.verdict == MISMATCH or (run.severity and run.memory) for run in counted):
            verdict = MISMATCH
        return structs.replace(
            plain,
            verdict=verdict,
            runs=tuple(runs),
            first_mismatch=firsts[0] if firsts else None,
            compared=add_counts(run.compared for run in runs),
            warnings=tuple(warnings_of(runs)),
            seconds={"total": round(time.perf_counter() - self.start, 4)},
            strides=summary,
            diagnoses=(),
            known=(),
        )


def survey(
    request: CheckRequest,
    repro_command: str,
    *,
    given: frozenset[str],
    fast: bool,
    setting: Setting,
) -> Iterator[Report]:
    """Tries a target in every layout: what is known after each, and at last all of it.

    Args:
        given: the options that a user gave. The others may be replaced by what the target takes.
        setting: its timeout is that of one layout; edits are tried on the simplest wrong one.
    """
    trying = replace(setting, checker=TRIES, fix_budget=0)
    options = {"recover": False, **request.options, "layout": ["all=contiguous"]}
    asked = replace(request, options=options)
    found = Survey(fast, time.perf_counter())
    steps = found.steps(PlannedTry("", asked, fixed=given))
    for outcome in Runner(Plan(list(next(steps)), steps), trying).outcomes():
        if outcome is not found.first or not found.trials:
            yield found.report(repro_command)
            continue
        taken = outcome.request.options.items()
        added = {name: word for name, word in taken if options.get(name) != word}
        if added:
            repro_command = shlex.join([*shlex.split(repro_command), *flags(added)])
    if found.trials and any(map(is_failing, found.runs)):
        yield _explained(found, found.report(repro_command), setting, given)


def _explained(found: Survey, report: Report, setting: Setting, given: frozenset[str]) -> Report:
    pairs, order = zip(found.trials, report.runs, strict=True), (ALONE, TOGETHER, PROGRAM)
    wrong = [trial for trial, run in pairs if run.has_wrong_elements]
    if not wrong or found.first is None:
        return report
    trial = min(wrong, key=lambda trial: order.index(trial.tried.kind))
    limit = None if setting.timeout is None else setting.timeout * len(report.runs)
    how = replace(setting, checker=FACTORY, timeout=limit)
    request = planned(found.first, trial).request
    asked = dict(request.options)
    if "recover" not in given:
        del asked["recover"]
    (outcome,) = check_each([PlannedCheck(trial.title, replace(request, options=asked))], how)
    found_causes = outcome.report.diagnoses
    return structs.replace(report, diagnoses=found_causes, known=outcome.report.known)
