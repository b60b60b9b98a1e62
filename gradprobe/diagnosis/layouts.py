"""The failing layouts of a target, and what each shows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from ..faults.hypothesis import Observed
from ..model.intermediates import GRADIENT_OF, title
from ..model.memory_finding import GUARD, OUTSIDE, RACE, MemoryFinding
from ..numerics.evidence import LayoutRun
from ..probing.experiment import Experiment
from .prediction import observed_in

# What a kernel does to the memory of a result that makes it wrong, whatever its numbers were.
_SPOILING = (RACE, OUTSIDE, GUARD)
# Nothing is made of these: without them the others come as before.
_RESULTS = frozenset(GRADIENT_OF.values())


@dataclass(frozen=True)
class FailingLayout:
    """One layout in which a target is wrong."""

    run: LayoutRun
    seen: Observed

    @property
    def name(self) -> str:
        return self.run.layout

    @cached_property
    def spoilt(self) -> frozenset[str]:
        """The results that kernels were seen to store outside themselves, or race for, in this layout."""
        return frozenset(title(one.tensor) for one in self.spoiling) & _RESULTS

    @property
    def spoiling(self) -> tuple[MemoryFinding, ...]:
        """What was seen of memory that makes a result wrong, whatever its numbers were."""
        return tuple(one for one in self.run.memory if one.kind in _SPOILING and one.access != "load")

    @cached_property
    def unspoilt(self) -> Observed:
        """What came, without those results."""
        return self.seen.of([name for name in self.seen.right if name not in self.spoilt])

    @cached_property
    def places(self) -> dict[str, tuple[bool, ...]]:
        """Of each result that is wrong by itself, the heads in which it is."""
        return {name: tuple(_by_head(self.seen, name)) for name in self.unspoilt.own}


def _by_head(seen: Observed, name: str) -> Iterator[bool]:
    wrong, axes = ~seen.right[name], seen.case.axes(name)
    at = next((axes.index(letter) for letter in "hg" if letter in axes), None)
    yield from [bool(wrong.any())] if at is None else (bool(of.any()) for of in wrong.unbind(at))


def failing_layouts(experiment: Experiment, failing: Sequence[LayoutRun]) -> list[FailingLayout]:
    """The runs as they are to be explained: the first, then those that move one tensor alone or show the least."""
    first, *others = [FailingLayout(run, observed_in(experiment, run)) for run in failing]
    return [first, *sorted(others, key=lambda one: ("all" in dict(one.run.assigned), len(one.unspoilt.wrong_names)))]
