"""Again: runs a target once more on what went wrong, and says which wrong elements changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ...cases.layouts import Assigned
from ...failures import Failure
from ...probing.experiment import Experiment, inputs_of
from ...probing.observe import execute
from ..observed import Observed

if TYPE_CHECKING:
    from torch import Tensor

    from ...targets.find import Target

Results = Mapping[str, "Tensor"]


@dataclass(frozen=True)
class Again:
    """Runs of one target, in the layout that went wrong."""

    experiment: Experiment
    assigned: Assigned
    seen: Observed

    def run(
        self,
        *,
        target: Target | None = None,
        unwritten: float | None = None,
        schedule: int = 0,
        around: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> Results | None:
        """The results of another run, in float64; None where it failed.

        Args:
            target: another one in its place.
            unwritten: what memory holds that nobody wrote, where that is not left to chance.
            schedule: of the threads of CUDA kernels on the CPU.
            around: entered around it.
        """
        experiment = replace(self.experiment, target=target or self.experiment.target)
        if unwritten is not None:
            experiment = replace(experiment, unwritten=unwritten, case=replace(experiment.case, poison=True))
        try:
            with around():
                outcome = execute(experiment, inputs_of(experiment, self.assigned), schedule).outcome
        except Failure:
            return None
        if outcome.trace is None:
            return None
        device = self.seen.x.q.device
        return {name: value.double().to(device) for name, value in outcome.trace.values.items()}

    def right(self, results: Results) -> float:
        """The share of the wrong elements that are right in another run."""
        found = sum(int((self._right(name, results) & ~self.seen.right[name]).sum()) for name in self._common(results))
        return found / self._wrong

    def is_right(self, results: Results) -> bool:
        """Whether all of another run is right."""
        return all(bool((self._right(name, results) | self._free(name)).all()) for name in self._common(results))

    def moved(self, one: Results, other: Results) -> dict[str, Tensor]:
        """Where two runs differ by more than what is allowed of either, by intermediate."""
        return {name: self._differ(name, one[name], other[name]) for name in self._common(one) if name in other}

    def share(self, moved: Mapping[str, Tensor]) -> float:
        """The share of the wrong elements that lie where runs differ."""
        return sum(int((where & ~self.seen.right[name]).sum()) for name, where in moved.items()) / self._wrong

    @property
    def came(self) -> Results:
        """What the run gave that went wrong."""
        return self.seen.actual

    @property
    def _wrong(self) -> int:
        return max(1, sum(self.seen.wrong(name) for name in self.seen.right))

    def _common(self, results: Results) -> list[str]:
        return [name for name in self.seen.actual if name in results]

    def _right(self, name: str, results: Results) -> Tensor:
        return (results[name] - self.seen.expected[name]).abs() <= self.seen.allowed[name]

    def _free(self, name: str) -> Tensor:
        """Where the value that came is right, though not by the reference's value."""
        within = (self.seen.actual[name] - self.seen.expected[name]).abs() <= self.seen.allowed[name]
        return self.seen.right[name] & ~within

    def _differ(self, name: str, one: Tensor, other: Tensor) -> Tensor:
        same = (one == other) | (one.isnan() & other.isnan())
        return ~same & ~((one - other).abs() <= 2 * self.seen.allowed[name])


def first_moved(moved: Mapping[str, Tensor]) -> str:
    """The first intermediate that differs; "" where none does."""
    return next((name for name, where in moved.items() if bool(where.any())), "")
