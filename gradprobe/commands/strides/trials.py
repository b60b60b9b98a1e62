"""Trial: one layout that is tried. Which there are for a case: each tensor alone, all at once, what programs make."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ...inputs.guard_bands import LARGE, NAN
from ...inputs.history import CheckRequest
from ...inputs.placement import Placement, placements_of
from ...inputs.tensor_layouts import NEVER_EXPANDED, VECTORS
from ...model.allowance import NOTHING, Allowance
from ...model.assignment import AS_SAVED, LAYOUTS, SCALED, Assigned
from ...model.layout_run import ALONE, MISMATCH, PROGRAM, TOGETHER, Run
from ...model.memory_finding import ERROR, HUGE, VECTOR, WARNING, MemoryFinding
from ...model.report import Report

CONTIGUOUS, EXPANDED = LAYOUTS[0], "expanded"
Fill = tuple[str, float]
"""What guard bands hold, and what memory without values holds."""
# Of the two runs of a trial.
BOTH: tuple[Fill, ...] = ((NAN, float("nan")), (LARGE, 7.0))
# What is run with either fill even when there is little time: all that is mixed up shows in the first, in the second
# where a target takes no last stride but 1, and what overflows in the third.
_THOROUGH = ("distinct", "distinct-unit", HUGE)
# Of tensors alone, what there is time for then: dO is what programs lay otherwise than all else, and vectors of
# parameters lie contiguous in all that is tried of several tensors.
_FAST = {"do": ("blhd", "distinct")} | dict.fromkeys(VECTORS, ("distinct",))


@dataclass(frozen=True)
class LayoutTrial:
    """One layout."""

    title: str
    kind: str
    """ALONE, TOGETHER or PROGRAM."""
    assigned: tuple[tuple[str, str], ...]
    """(tensor, layout), later ones before earlier ones."""
    row: str = ""
    """The tensor that does not lie contiguous, "all", or "" of a program."""
    layout: str = ""
    """Its layout."""
    placements: Mapping[str, Placement] = field(default_factory=dict)
    """Where those lie that are assigned `as-saved`."""
    thorough: bool = True
    """Whether it is run twice, with either fill."""

    @property
    def fills(self) -> tuple[Fill, ...]:
        """What surrounds the tensors, and what memory without values holds, in each run."""
        return BOTH if self.thorough else BOTH[:1]

    @property
    def hazard(self) -> str:
        """HUGE, or VECTOR where a vector of parameters alone is strided; "" of all other layouts."""
        if self.layout == HUGE:
            return HUGE
        return VECTOR if self.row in VECTORS and self.layout != "offset" else ""

    def scaled(self) -> LayoutTrial:
        """The same of a trial of `huge`, within 2^31 elements."""
        assigned = tuple((tensor, SCALED) for tensor, _ in self.assigned)
        return replace(
            self, title=self.title.replace(HUGE, SCALED), assigned=assigned, layout=SCALED
        )


def trials_of(
    shapes: Mapping[str, tuple[int, ...]], programs: tuple[LayoutTrial, ...], *, fast: bool
) -> tuple[LayoutTrial, ...]:
    """What is tried, all at once first: that shows most.

    Args:
        shapes: of the tensors that the target is given, by name.
        programs: from `programs_of`.
        fast: hardly any tensor alone, and hardly any trial thorough.
    """
    together = [
        LayoutTrial(
            layout,
            TOGETHER,
            (("all", layout),),
            "all",
            layout,
            thorough=layout in _THOROUGH or not fast,
        )
        for layout in LAYOUTS[1:]
    ]
    alone = [
        LayoutTrial(f"{name}={layout}", ALONE, ((name, layout),), name, layout, thorough=not fast)
        for name in shapes
        for layout in _layouts_of(name, shapes[name], fast=fast)
    ]
    return (*together, *programs, *alone)


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


def programs_of(shapes: Mapping[str, tuple[int, ...]], *, fast: bool) -> tuple[LayoutTrial, ...]:
    """The layouts of programs, of the tensors that the target is given.

    Args:
        shapes: of those tensors, by name.
        fast: none of them thorough.
    """
    written = [
        LayoutTrial(
            title,
            PROGRAM,
            tuple((name, layout) for name, layout in assigned if name in shapes),
            thorough=not fast,
        )
        for title, assigned in _written(shapes)
    ]
    # Where dO lies when O was one of two parts of torch.cat: as autograd itself hands it back.
    concatenated = [
        LayoutTrial(
            f"torch.cat of {what}, its backward",
            PROGRAM,
            (("do", AS_SAVED),),
            thorough=not fast,
            placements={"do": _gradient_of_cat(shapes["do"], axis)},
        )
        for axis, what in ((1, "heads"), (2, "rows"), (3, "head dims"))
    ]
    return (*written, *concatenated)


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


def _gradient_of_cat(shape: tuple[int, ...], axis: int) -> Placement:
    import torch

    first, second = (torch.zeros(shape, requires_grad=True) for _ in range(2))
    seen: list[Any] = []
    kept = second.view_as(second)
    kept.register_hook(seen.append)
    whole = torch.cat([first, kept], axis)
    (
        whole * torch.zeros_like(whole)
    ).sum().backward()  # one given as it is would have torch import sympy
    return placements_of({"do": seen[0]})["do"]


NOT_RUN = "error"


@dataclass(frozen=True)
class TrialResult:
    """The result of one trial, or of the contiguous run with which the others are compared."""

    trial: LayoutTrial
    verdict: str
    """match, mismatch, skipped or error."""
    how: str = ""
    """For a match: BITS (the same as when contiguous) or BUDGET."""
    words: str = ""
    """Why it was skipped or could not be run."""
    memory: tuple[MemoryFinding, ...] = ()
    copied: tuple[str, ...] = ()
    """The tensors of which kernels got copies here, but not when all were contiguous."""
    run: Run | None = None
    """As in a report; None where there was none."""
    hazard: str = ""
    """For a failing trial: its hazard, where the same trial without the hazard is right."""
    severity: str = ERROR
    """WARNING for a trial that fails by a hazard and does not count."""

    @property
    def is_failing(self) -> bool:
        """Whether it is wrong, or could not be run."""
        return self.verdict in (MISMATCH, NOT_RUN)

    @property
    def is_warning(self) -> bool:
        """Whether it fails, is shown, and does not count."""
        return self.is_failing and self.severity == WARNING


@dataclass(frozen=True)
class SurveyPlan:
    """The trials of a target, and what a report says of it."""

    trials: tuple[LayoutTrial, ...]
    """The contiguous one first."""
    report: Report
    """Of the contiguous run alone."""
    more: str = ""
    """Options that were found to fit what the target takes, as words of the command line."""


@dataclass(frozen=True)
class FailedTrial:
    """A trial whose cause is asked for."""

    title: str
    edits: Allowance = NOTHING
    """Of the target, that are tried."""


@dataclass(frozen=True)
class BenchSetup:
    """What a bench is made from."""

    request: CheckRequest
    repro_command: str
    """The command line that repeats it."""
    fast: bool
    given: frozenset[str]
    """The options that the user gave. `strides` chooses the others by itself."""
