"""Runs a target once more on what went wrong, and says which wrong elements changed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ..faults.dead import FIX
from ..faults.hypothesis import Observed
from ..model.assignment import Assigned
from ..model.failures import Failure
from ..model.mechanisms import door
from ..model.report import Diagnosis
from ..probing.experiment import Experiment, inputs_of
from ..probing.measure import measure
from ..probing.observe import execute
from ..processes.forks import halved

if TYPE_CHECKING:
    from ..targets.find import Target

Results = Mapping[str, Tensor]


@dataclass(frozen=True)
class Again:
    """Runs of one target, in the layout that went wrong."""

    experiment: Experiment
    assigned: Assigned
    seen: Observed
    _calls: list[Results | None] = field(default_factory=list, init=False, repr=False, compare=False)

    def call(self, number: int) -> Results | None:
        """The results of one of the next calls with the same values, the next of which is 0; made once."""
        while len(self._calls) <= number:
            self._calls.append(self.run())
        return self._calls[number]

    def run(
        self,
        *,
        target: Target | None = None,
        unwritten: float | None = None,
        schedule: int = 0,
        instrumentation: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> Results | None:
        """The results of another run, in float64; None where it failed.

        Args:
            target: another one in its place.
            unwritten: what memory holds that nobody wrote, where that is not left to chance.
            schedule: of the threads of CUDA kernels on the CPU.
            instrumentation: entered around it.
        """
        experiment = replace(self.experiment, target=target or self.experiment.target)
        if unwritten is not None:
            experiment = replace(experiment, unwritten=unwritten, case=replace(experiment.case, poison=True))
        try:
            with instrumentation():
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
        seen = self.seen
        # Where the value that came is right, though not by the reference's value, any other may be.
        free = {name: seen.right[name] & ~self._right(name, seen.actual) for name in seen.actual}
        return all(bool((self._right(name, results) | free[name]).all()) for name in self._common(results))

    def moved(self, one: Results, other: Results) -> dict[str, Tensor]:
        """Where two runs differ by more than what is allowed of either, by intermediate."""
        moved = {}
        for name in (name for name in self._common(one) if name in other):
            a, b = one[name], other[name]
            same = (a == b) | (a.isnan() & b.isnan())
            moved[name] = ~same & ~((a - b).abs() <= 2 * self.seen.allowed[name])
        return moved

    def share(self, moved: Mapping[str, Tensor]) -> float:
        """The share of the wrong elements that lie where runs differ."""
        return sum(int((where & ~self.seen.right[name]).sum()) for name, where in moved.items()) / self._wrong

    @property
    def actual(self) -> Results:
        """What the run gave that went wrong."""
        return self.seen.actual

    @property
    def _wrong(self) -> int:
        return max(1, sum(self.seen.wrong(name) for name in self.seen.right))

    def _common(self, results: Results) -> list[str]:
        return [name for name in self.seen.actual if name in results]

    def _right(self, name: str, results: Results) -> Tensor:
        return (results[name] - self.seen.expected[name]).abs() <= self.seen.allowed[name]


def first_moved(moved: Mapping[str, Tensor]) -> str:
    """The first intermediate that differs; "" where none does."""
    return next((name for name, where in moved.items() if bool(where.any())), "")


# Orders of threads that are tried where kernels run on the CPU.
_SCHEDULES = (1, 2)


@door("behaviour/wrong_in_the_first_call_alone")
def wrong_in_the_first_call_alone(again: Again) -> Diagnosis | None:
    """The first call is wrong; a second and a third are right."""
    second = again.call(0)
    if second is None or not again.is_right(second):
        return None
    third = again.call(1)
    if third is None or not again.is_right(third):
        return None
    name = first_moved(again.moved(again.actual, second))
    # The one factor by which the first call was wrong.
    actual, expected = again.actual[name], again.seen.expected[name]
    squares = float((expected**2).sum())
    ratio = float((actual * expected).sum()) / squares if squares else 0.0
    is_one = bool(((actual - ratio * expected).abs() <= 1e-4 * expected.abs().max()).all())
    times = f" ({ratio:.4g} times what is right)" if ratio and is_one else ""
    return Diagnosis(
        f"autotune/{name}",
        "ATUNE",
        f"{name} is wrong in the first call{times} and right in later ones",
        again.right(second),
        ("two further calls with the same values gave right results",),
        fix="what a kernel adds to must be zeroed before each config that is tried: triton.autotune(reset_to_zero=...)",
    )


@door("behaviour/later_call_differs")
def later_call_differs(again: Again) -> Diagnosis | None:
    """The first call was right; another with the same values gives other results."""
    results = again.call(0)
    moved = {} if results is None else again.moved(again.actual, results)
    name = first_moved(moved)
    if not name:
        return None
    count = int(moved[name].sum())
    return Diagnosis(
        f"race/{name}",
        "RACE",
        f"{name} is right in the first call, and with the same values wrong in a later one",
        1.0,
        (f"{count:,} elements of {name} differ between the two calls",),
        fix="what one call leaves (buffers, caches, counters) must not reach the next",
    )


@door("behaviour/differs_from_run_to_run")
def differs_from_run_to_run(again: Again) -> Diagnosis | None:
    """Repeated calls differ; where kernels run on the CPU, calls with other orders of threads."""
    on_cpu = again.experiment.cuda == "cuda-on-cpu"
    runs = [again.run(schedule=one) for one in _SCHEDULES] if on_cpu else [again.call(number) for number in range(3)]
    results = [again.actual, *(run for run in runs if run is not None)]
    moved = {name: again.seen.right[name] & False for name in again.actual}
    for run in results[1:]:
        moved = {name: moved[name] | where for name, where in again.moved(results[0], run).items()}
    name = first_moved(moved)
    if not name:
        return None
    how = "in another order of threads and blocks" if on_cpu else "from call to call"
    others = [each for each, where in moved.items() if not bool(where.any())]
    steady = f"; {', '.join(others)} stay as they are" if others else ""
    count = int(moved[name].sum())
    where = ", ".join(map(str, moved[name].nonzero()[0].tolist()))
    return Diagnosis(
        f"race/{name}",
        "RACE",
        f"{name} differs {how}, by more than the order of atomic additions allows",
        again.share(moved),
        (f"{count:,} elements of {name} differ between {len(results)} runs, the first at [{where}]{steady}",),
    )


@door("behaviour/reads_what_was_never_written")
def reads_what_was_never_written(again: Again) -> Diagnosis | None:
    """Two runs differ whose memory held NaN and 7.0 before them."""
    with_nan, with_seven = halved(lambda some: [again.run(unwritten=one) for one in some], (math.nan, 7.0))
    if with_nan is None or with_seven is None:
        return None
    moved = again.moved(with_nan, with_seven)
    name = first_moved(moved)
    if not name:
        return None
    wrong = {each: where | ~again.seen.right[each] & ~again.actual[each].isfinite() for each, where in moved.items()}
    count = int(moved[name].sum())
    return Diagnosis(
        f"unwritten/{name}",
        "N2",
        f"{name} depends on what memory held before the run: it, or its scratch, is read before it is written",
        again.share(wrong),
        (f"{count:,} elements of {name} differ between memory full of NaN and full of 7.0",),
        fix="use torch.zeros for what is added to, and store every element of a torch.empty",
    )


@door("behaviour/right_without_dead_rows")
def right_without_dead_rows(again: Again) -> Diagnosis | None:
    """The same values right with a mask that shows every key to the rows from which it hides all."""
    mask = again.experiment.values.get("mask")
    seen = again.seen
    name = next((name for name in seen.own if bool((~seen.actual[name].isfinite() & ~seen.right[name]).any())), None)
    if name is None or mask is None or bool(mask.any(-1).all()):
        return None
    values = {**again.experiment.values, "mask": mask | ~mask.any(-1, keepdim=True)}
    experiment = replace(again.experiment, values=values)
    try:
        inputs = inputs_of(experiment, again.assigned)
        trace = execute(experiment, inputs).outcome.trace
        if trace is None or not measure(experiment, inputs, trace).comparison.matches:
            return None
    except Failure:
        return None
    summary = f"rows that see no key make {name} NaN: exp(-inf - -inf), or 0 / 0"
    evidence = "with a mask that shows those rows every key, the same values give right results"
    return Diagnosis("dead/nan", "N1", summary, 1.0, (evidence,), fix=FIX)
