"""Trials: the layouts of a survey. Each tensor lies otherwise alone, all do at once, and as programs lay them."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

from msgspec import structs

from ...inputs.guard_bands import LARGE, NAN
from ...inputs.history import CheckRequest
from ...inputs.placement import ALIGNED, Placement
from ...inputs.tensor_layouts import NEVER_EXPANDED, VECTORS
from ...model.assignment import AS_SAVED, LAYOUTS, SCALED, TENSORS, Assigned
from ...model.layout_run import ALONE, FAILED, MISMATCH, PROGRAM, TOGETHER, Run, SurveyedLayout
from ...model.memory_finding import ERROR, HUGE, OUTSIDE, VECTOR, WARNING, WarningNote
from ...model.report import Culprit
from ..suite.outcome import CheckOutcome
from ..suite.plan import PlannedCheck

CONTIGUOUS, EXPANDED = LAYOUTS[0], "expanded"
Fill = tuple[str, float]
"""What guard bands hold, and what memory without values holds."""
BOTH: tuple[Fill, ...] = ((NAN, float("nan")), (LARGE, 7.0))
# Run with either fill even when there is little time: strides that are mixed up show in the first, in the second where
# a target takes no last stride but 1, and offsets that overflow in the third.
_THOROUGH = ("distinct", "distinct-unit", HUGE)
# Elements of one tensor that an offset of 32 bits still reaches.
_NARROW = 2**31
# What is tried of one tensor alone then.
_FAST = {"do": ("blhd", "distinct")} | dict.fromkeys(VECTORS, ("distinct",))


@dataclass(frozen=True)
class LayoutTrial:
    title: str
    kind: str
    """ALONE, TOGETHER or PROGRAM."""
    assigned: Assigned
    row: str = ""
    """The tensor that does not lie contiguous, "all", or "" of a program."""
    layout: str = ""
    placements: Mapping[str, Placement] = field(default_factory=dict)
    """Where those lie that are assigned `as-saved`."""
    thorough: bool = True
    """Whether it is run twice, with either fill."""

    @property
    def fills(self) -> tuple[Fill, ...]:
        return BOTH if self.thorough else BOTH[:1]

    @property
    def hazard(self) -> str:
        """HUGE, or VECTOR where a vector of parameters alone is strided; "" of all other layouts."""
        if self.layout == HUGE:
            return HUGE
        return VECTOR if self.row in VECTORS and self.layout != "offset" else ""

    def without_hazard(self) -> LayoutTrial:
        """The same strides within 2^31 elements; the vector contiguous."""
        if self.layout != HUGE:
            return FIRST
        assigned = tuple((tensor, SCALED) for tensor, _ in self.assigned)
        title = self.title.replace(HUGE, SCALED)
        return replace(self, title=title, assigned=assigned, layout=SCALED)

    @property
    def as_told(self) -> SurveyedLayout:
        """As a report has it."""
        return SurveyedLayout(
            kind=self.kind, row=self.row, layout=self.layout, thorough=self.thorough
        )


FIRST = LayoutTrial(CONTIGUOUS, TOGETHER, (), "all", CONTIGUOUS)
"""What every other is held against."""


def trials_of(shapes: Mapping[str, tuple[int, ...]], *, fast: bool) -> tuple[LayoutTrial, ...]:
    """All trials of tensors of these shapes: FIRST, then all at once, which shows most.

    Args:
        fast: hardly any tensor alone, and hardly any trial thorough.
    """
    together = [
        LayoutTrial(layout, TOGETHER, (("all", layout),), "all", layout) for layout in LAYOUTS[1:]
    ]
    alone = [
        LayoutTrial(f"{name}={layout}", ALONE, ((name, layout),), name, layout)
        for name, shape in shapes.items()
        for layout in _layouts_of(name, shape, fast=fast)
    ]
    trials = (*together, *_programs(shapes), *alone)
    if fast:
        trials = tuple(replace(each, thorough=each.title in _THOROUGH) for each in trials)
    return (FIRST, *trials)


def _layouts_of(name: str, shape: tuple[int, ...], *, fast: bool) -> Iterator[str]:
    """The layouts that change where a tensor of this shape lies."""
    for layout in _FAST.get(name, ()) if fast else LAYOUTS[1:]:
        if layout == "packed" and len(shape) != 4:
            continue
        if layout in ("blhd", "distinct-unit", HUGE) and len(shape) < 2:
            continue
        if layout == EXPANDED and (name in NEVER_EXPANDED or max(shape) == 1):
            continue
        if max(shape) > 1 or layout == "offset":
            yield layout


def _programs(shapes: Mapping[str, tuple[int, ...]]) -> Iterator[LayoutTrial]:
    for title, assigned in _written(shapes):
        given = tuple((name, layout) for name, layout in assigned if name in shapes)
        yield LayoutTrial(title, PROGRAM, given)
    # Where dO lies when O was one of two parts of torch.cat.
    for axis, what in ((1, "heads"), (2, "rows"), (3, "head dims")):
        title, places = f"torch.cat of {what}, its backward", {"do": _part(shapes["do"], axis)}
        yield LayoutTrial(title, PROGRAM, (("do", AS_SAVED),), placements=places)


def _written(shapes: Mapping[str, tuple[int, ...]]) -> Iterator[tuple[str, Assigned]]:
    packed = {name: "packed" for name in ("q", "k", "v", "dq", "dk", "dv")}
    yield "packed qkv, dO a [B, L, H, D] view", (*packed.items(), ("do", "blhd"), ("o", "blhd"))
    pair = {name: "packed" for name in ("k", "v", "dk", "dv")}
    rest = tuple((name, "blhd") for name in ("q", "do", "o", "dq"))
    yield "packed kv, q and dO [B, L, H, D] views", (*pair.items(), *rest)
    views = tuple((name, "blhd") for name in ("q", "k", "v", "o"))
    yield "out.sum() of [B, L, H, D] views", (*views, ("do", "expanded"))
    yield "[B, L, H, D] views, dO contiguous", views
    if "o" in shapes:
        yield "O saved as a [B, L, H, D] view, dO contiguous", (("o", "blhd"),)
        yield "O saved contiguous, dO a [B, L, H, D] view", (("do", "blhd"),)


def _part(shape: tuple[int, ...], axis: int) -> Placement:
    """The second half of a contiguous tensor that is twice as long along an axis."""
    whole = [2 * size if at == axis else size for at, size in enumerate(shape)]
    spans = list(accumulate([1, *reversed(whole[1:])], lambda span, size: span * size))[::-1]
    return Placement(tuple(spans), shape[axis] * spans[axis] % ALIGNED, "do")


@dataclass(frozen=True)
class PlannedTrial(PlannedCheck):
    """One layout of a survey."""

    trial: LayoutTrial = FIRST
    fixed: frozenset[str] = frozenset()
    """Of the first: the options that the user gave. The others may be replaced by what the target takes."""


@dataclass(frozen=True)
class FirstOutcome(CheckOutcome):
    """The contiguous run. Its request has the options with which the target runs."""

    shapes: Mapping[str, tuple[int, ...]]
    """Of the tensors that the target is given, by name."""


def planned(request: CheckRequest, trial: LayoutTrial) -> PlannedTrial:
    words = [f"{tensor}={layout}" for tensor, layout in trial.assigned] or [trial.title]
    options = {**request.options, "layout": words}
    return PlannedTrial(trial.title, replace(request, options=options), trial=trial)


def is_failing(run: Run) -> bool:
    """Whether it is wrong, or could not be run."""
    return run.verdict in (MISMATCH, FAILED)


def weighed(
    run: Run,
    trial: LayoutTrial,
    is_right: Callable[[LayoutTrial], bool],
    strict: bool,
    shapes: Mapping[str, tuple[int, ...]],
) -> Run:
    """A run; one that fails by its hazard alone is a warning, unless the case is strict or itself that large.

    Args:
        is_right: whether another trial is.
    """
    if not (trial.hazard and is_failing(run) and is_right(trial.without_hazard())):
        return run
    is_large = any(math.prod(shape) > _NARROW for shape in shapes.values())
    severity = ERROR if strict or (trial.hazard == HUGE and is_large) else WARNING
    memory = tuple(replace(finding, severity=severity) for finding in run.memory)
    tried = structs.replace(trial.as_told, hazard=trial.hazard)
    return structs.replace(run, tried=tried, severity=severity, memory=memory)


# Of culprits.
WITHIN, OVERFLOW = "contiguous", "overflow"
ALL_AXES = -1


def any_of(names: Sequence[str]) -> str:
    """ "q", "q or k", "q, k or v"."""
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last


@dataclass(frozen=True)
class Hazard:
    """What several layouts show that fail by it alone."""

    severity: str
    culprit: Culprit
    warned: WarningNote


def hazards(runs: Collection[Run]) -> list[Hazard]:
    """The hazards that runs came to: offsets are one, and so is each vector."""
    groups: dict[tuple[str, str, str], list[Run]] = {}
    for run in runs:
        if run.tried and run.tried.hazard:
            kind, row = run.tried.hazard, run.tried.row
            about = "" if kind == HUGE else row
            groups.setdefault((kind, about, run.severity or ""), []).append(run)
    found = list[Hazard]()
    for (kind, about, severity), those in groups.items():
        culprit = _overflow(those) if kind == HUGE else _strided(about)
        tensors = " ".join(name for name, _ in culprit.strides)
        note = WarningNote(kind, tensors, culprit.words, tuple(run.layout for run in those))
        found.append(Hazard(severity, culprit, note))
    return found


def _overflow(runs: Sequence[Run]) -> Culprit:
    """The tensors that fail alone; or those outside which an access was seen."""
    rows = {run.tried.row for run in runs if run.tried} - {"all"}
    seen = {found.tensor for run in runs for found in run.memory if found.kind == OUTSIDE}
    names = [name for name in TENSORS if name in (rows or seen)]
    into = f" into {any_of(names)}" if names else ""
    words = f"wrong once an offset{into} passes 2^31 elements: an index is held in 32 bits"
    return Culprit(OVERFLOW, tuple((name, ALL_AXES) for name in names), words)


def _strided(name: str) -> Culprit:
    words = f"wrong when {name}.stride(0) != 1: it is taken for contiguous"
    return Culprit(WITHIN, ((name, 0),), words)
