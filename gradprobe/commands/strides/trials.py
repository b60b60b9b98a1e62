"""Trials: the layouts of a survey. Each tensor lies otherwise alone, all do at once, and as programs lay them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from msgspec import structs

from ...inputs.tensor_layouts import NEVER_EXPANDED, VECTORS
from ...model.assignment import LAYOUTS, SCALED, TENSORS, Assigned, run_name
from ...model.layout_run import ALONE, FAILED, MISMATCH, PROGRAM, TOGETHER, Run, SurveyedLayout
from ...model.memory_finding import ERROR, HUGE, OUTSIDE, VECTOR, WARNING, WarningNote
from ...model.number import listed
from ..suite.outcome import CheckOutcome
from ..suite.tries import PlannedTry

CONTIGUOUS, EXPANDED = LAYOUTS[0], "expanded"
# Run with either fill even when there is little time: strides that are mixed up show in the first, in the second where
# a target takes no last stride but 1, and offsets that overflow in the third.
_THOROUGH = ("distinct", "distinct-unit", HUGE)
# What is tried of one tensor alone then.
_FAST = {"do": ("blhd", "distinct")} | dict.fromkeys(VECTORS, ("distinct",))
# Elements of one tensor that an offset of 32 bits still reaches.
_NARROW = 2**31
# How programs lay tensors, by layout. Those that save O are tried where the target takes it.
_SAVED = "O saved"
_PROGRAMS = {
    "packed qkv, dO a [B, L, H, D] view": {"packed": "q k v dq dk dv", "blhd": "do o"},
    "packed kv, q and dO [B, L, H, D] views": {"packed": "k v dk dv", "blhd": "q do o dq"},
    "out.sum() of [B, L, H, D] views": {"blhd": "q k v o", EXPANDED: "do"},
    "[B, L, H, D] views, dO contiguous": {"blhd": "q k v o"},
    f"{_SAVED} as a [B, L, H, D] view, dO contiguous": {"blhd": "o"},
    f"{_SAVED} contiguous, dO a [B, L, H, D] view": {"blhd": "do"},
}


@dataclass(frozen=True)
class LayoutTrial:
    assigned: Assigned
    """Of one tensor alone, or of "all"; of each where a program lays them so."""
    program: str = ""
    thorough: bool = True
    """Whether it is run twice, in guard bands of NaN and of large numbers."""
    severity: str = WARNING
    """Of a failure by its hazard alone."""

    @property
    def title(self) -> str:
        return self.program or run_name(self.assigned)

    @property
    def tried(self) -> SurveyedLayout:
        """As a report has it."""
        if self.program:
            return SurveyedLayout(kind=PROGRAM, thorough=self.thorough)
        ((row, layout),) = self.assigned
        kind = TOGETHER if row == "all" else ALONE
        return SurveyedLayout(kind=kind, row=row, layout=layout, thorough=self.thorough)

    @property
    def hazard(self) -> str:
        """HUGE, or VECTOR where a vector of parameters alone is strided; "" of all other layouts."""
        if self.tried.layout == HUGE:
            return HUGE
        return VECTOR if self.tried.row in VECTORS and self.tried.layout != "offset" else ""

    def without_hazard(self) -> LayoutTrial:
        """The same strides within 2^31 elements; the vector contiguous."""
        scaled = tuple((tensor, SCALED) for tensor, _ in self.assigned)
        return replace(self, assigned=scaled) if self.hazard == HUGE else FIRST


FIRST = LayoutTrial((("all", CONTIGUOUS),))
"""What every other is held against."""


def trials_of(
    shapes: Mapping[str, tuple[int, ...]], *, fast: bool, strict: bool = False
) -> tuple[LayoutTrial, ...]:
    """All trials of tensors of these shapes: FIRST, then all at once, which shows most.

    Args:
        fast: hardly any tensor alone, and hardly any trial thorough.
        strict: whether nothing is a warning; nor is an offset beyond 2^31 where a tensor is itself that large.
    """
    is_large = any(math.prod(shape) > _NARROW for shape in shapes.values())
    trials = [LayoutTrial((("all", layout),)) for layout in LAYOUTS[1:]]
    trials += _programs(shapes)
    for name, shape in shapes.items():
        layouts = _layouts_of(name, shape, fast=fast)
        trials += (LayoutTrial(((name, layout),)) for layout in layouts)
    for at, trial in enumerate(trials):
        severity = ERROR if strict or (is_large and trial.hazard == HUGE) else WARNING
        is_thorough = not fast or trial.title in _THOROUGH
        trials[at] = replace(trial, thorough=is_thorough, severity=severity)
    return (FIRST, *trials)


def _layouts_of(name: str, shape: tuple[int, ...], *, fast: bool) -> Iterator[str]:
    """The layouts that change where a tensor of this shape lies."""
    for layout in _FAST.get(name, ()) if fast else LAYOUTS[1:]:
        if layout == "packed" and len(shape) != 4:
            continue
        if layout in ("blhd", "distinct-unit", HUGE) and len(shape) < 2:
            continue
        if layout == EXPANDED and (name in (*NEVER_EXPANDED, *VECTORS) or max(shape) == 1):
            continue
        if max(shape) > 1 or layout == "offset":
            yield layout


def _programs(shapes: Mapping[str, tuple[int, ...]]) -> Iterator[LayoutTrial]:
    for title, laid in _PROGRAMS.items():
        if "o" in shapes or not title.startswith(_SAVED):
            pairs = ((name, layout) for layout, names in laid.items() for name in names.split())
            yield LayoutTrial(tuple(pair for pair in pairs if pair[0] in shapes), title)


def planned(first: CheckOutcome, trial: LayoutTrial) -> PlannedTry:
    """One layout of the case that a first check was made of; twice, memory without values holds 7.0 the second time."""
    assert first.report.case is not None
    repeat = 2 if trial.thorough else 1
    case = replace(first.report.case, layouts=trial.assigned, runs=(), poison=True, repeat=repeat)
    words = [f"{tensor}={layout}" for tensor, layout in trial.assigned]
    options = {**first.request.options, "layout": words}
    return PlannedTry(trial.title, replace(first.request, options=options), case=case)


def is_failing(run: Run) -> bool:
    """Whether it is wrong, or could not be run."""
    return run.verdict in (MISMATCH, FAILED)


def weighed(run: Run, trial: LayoutTrial, is_right: bool) -> Run:
    """The run of a trial, with how much it counts where it fails: by its hazard alone, it may be a warning.

    Args:
        is_right: whether it is without its hazard.
    """
    run, tried = structs.replace(run, layout=trial.title), trial.tried
    if not is_failing(run):
        return structs.replace(run, tried=tried, memory=())
    severity = trial.severity if is_right else ERROR
    found = []
    for finding in run.memory:
        weight = severity if is_right else finding.severity
        found.append(replace(finding, severity=weight, layout=trial.title))
    tried = structs.replace(tried, hazard=trial.hazard if is_right else "")
    return structs.replace(run, tried=tried, severity=severity, memory=tuple(found))


def warnings_of(runs: Iterable[Run]) -> Iterator[WarningNote]:
    """What layouts show that fail by a hazard alone: offsets are one, and so is each vector."""
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        if run.tried and run.severity == WARNING:
            kind, row = run.tried.hazard, run.tried.row
            groups.setdefault((kind, "" if kind == HUGE else row), []).append(run)
    for (kind, about), those in groups.items():
        names = [about] if about else _overflowing(those)
        words = f"wrong when {about}.stride(0) != 1: it is taken for contiguous"
        if kind == HUGE:
            into = f" into {listed(names, 'or')}" if names else ""
            words = (
                f"wrong once an offset{into} passes 2^31 elements: an index is held in 32 bits"
            )
        layouts = tuple(run.layout for run in those)
        yield WarningNote(kind, " ".join(names), words, layouts)


def _overflowing(runs: list[Run]) -> list[str]:
    """The tensors that fail alone; or those outside which an access was seen."""
    rows = {run.tried.row for run in runs if run.tried} - {"all"}
    seen = {found.tensor for run in runs for found in run.memory if found.kind == OUTSIDE}
    return [name for name in TENSORS if name in (rows or seen)]
