"""Trial: one layout that is tried. Which there are for a case: each tensor alone, all at once, what programs make."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from ..cases.guards import LARGE, NAN
from ..cases.layouts import LAYOUTS, NEVER_EXPANDED, SCALED, VECTORS
from ..cases.placement import Placement
from ..severity import HUGE, VECTOR

CONTIGUOUS, EXPANDED = LAYOUTS[0], "expanded"
ALONE, TOGETHER, PROGRAM = "one tensor", "all tensors", "program"
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
class Trial:
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

    def scaled(self) -> Trial:
        """The same of a trial of `huge`, within 2^31 elements."""
        assigned = tuple((tensor, SCALED) for tensor, _ in self.assigned)
        return replace(self, title=self.title.replace(HUGE, SCALED), assigned=assigned, layout=SCALED)


def trials_of(shapes: Mapping[str, tuple[int, ...]], programs: tuple[Trial, ...], *, fast: bool) -> tuple[Trial, ...]:
    """What is tried, all at once first: that shows most.

    Args:
        shapes: of the tensors that the target is given, by name.
        programs: from `programs.programs_of`.
        fast: hardly any tensor alone, and hardly any trial thorough.
    """
    together = [
        Trial(layout, TOGETHER, (("all", layout),), "all", layout, thorough=layout in _THOROUGH or not fast)
        for layout in LAYOUTS[1:]
    ]
    alone = [
        Trial(f"{name}={layout}", ALONE, ((name, layout),), name, layout, thorough=not fast)
        for name in shapes
        for layout in _layouts_of(name, shapes[name], fast=fast)
    ]  # fmt: skip
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
