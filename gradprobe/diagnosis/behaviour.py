"""Runs a target once more on what went wrong, or reads how it was compiled: what no variant predicts."""

from __future__ import annotations

import json
import math
import os
import shlex
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from torch import Tensor

from ..faults.fault_rows import DEAD_FIX
from ..faults.hypothesis import Observed
from ..frontends.interface import COMPILED, CUDA_ON_CPU
from ..inputs.options import with_others
from ..model.assignment import Assigned, run_name
from ..model.failures import Failure
from ..model.mechanisms import door
from ..model.report import Diagnosis, Where
from ..numerics.compare import compare
from ..numerics.declared_precision import precision_of
from ..probing.experiment import Experiment, coarser_dots, dots_in_words, dots_of, inputs_of
from ..probing.observe import execute
from ..processes.executables import Program, gradprobe_command, run_programs
from ..processes.forks import halved
from ..runtime.arithmetic import coarsest
from .lines import among, line_of
from .prediction import run_again

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

    def run(self, *, unwritten: float | None = None, schedule: int = 0) -> Results | None:
        """The results of another run, in float64; None where it failed.

        Args:
            unwritten: what memory holds that nobody wrote, where that is not left to chance.
            schedule: of the threads of CUDA kernels on the CPU.
        """
        experiment = self.experiment
        if unwritten is not None:
            experiment = replace(experiment, unwritten=unwritten, case=replace(experiment.case, poison=True))
        try:
            outcome = execute(experiment, inputs_of(experiment, self.assigned), schedule).outcome
        except Failure:
            return None
        if outcome.trace is None:
            return None
        device, values = self.seen.x.q.device, outcome.trace.values
        return {name: value.double().to(device) for name, value in values.items() if name in self.seen.right}

    def is_right(self, results: Results | None) -> bool:
        """Whether there are results of another run, and all of them are right."""
        seen = self.seen
        # Where the value that came is right, though not by the reference's value, any other may be.
        free = {name: right & ~self._right(name, seen.actual[name]) for name, right in seen.right.items()}
        return results is not None and all(
            bool((self._right(name, of) | free[name]).all()) for name, of in results.items()
        )

    def moved(self, one: Results | None, other: Results | None) -> dict[str, Tensor]:
        """Where two runs differ by more than what is allowed of either, by intermediate, the first that does first."""
        moved: dict[str, Tensor] = {}
        for name in (name for name in one or {} if name in (other or {})):
            a, b = (one or {})[name], (other or {})[name]
            where = ~((a == b) | (a.isnan() & b.isnan())) & ~((a - b).abs() <= 2 * self.seen.allowed[name])
            moved |= {name: where} if bool(where.any()) else {}
        return moved

    def share(self, moved: Mapping[str, Tensor]) -> float:
        """The share of the wrong elements that lie where runs differ."""
        wrong = sum(map(self.seen.wrong, self.seen.wrong_names))
        return sum(int((where & ~self.seen.right[name]).sum()) for name, where in moved.items()) / max(1, wrong)

    def _right(self, name: str, value: Tensor) -> Tensor:
        return (value - self.seen.expected[name]).abs() <= self.seen.allowed[name]


def _counted(moved: Mapping[str, Tensor], between: str) -> tuple[str]:
    name, where = next(iter(moved.items()))
    return (f"{int(where.sum()):,} elements of {name} differ between {between}",)


@door("behaviour/wrong_in_the_first_call_alone")
def wrong_in_the_first_call_alone(again: Again) -> Diagnosis | None:
    """The first call is wrong; a second and a third are right."""
    if not (again.is_right(again.call(0)) and again.is_right(again.call(1))):
        return None
    name = next(iter(again.moved(again.seen.actual, again.call(0))))
    summary = f"{name} is wrong in the first call and right in later ones"
    evidence = ("two further calls with the same values gave right results",)
    fix = "what a kernel adds to must be zeroed before each config that is tried: triton.autotune(reset_to_zero=...)"
    return Diagnosis(f"autotune/{name}", "ATUNE", summary, 1.0, evidence, fix=fix)


@door("behaviour/later_call_differs")
def later_call_differs(again: Again) -> Diagnosis | None:
    """The first call was right; another with the same values gives other results."""
    if not (moved := again.moved(again.seen.actual, again.call(0))):
        return None
    name = next(iter(moved))
    summary = f"{name} is right in the first call, and with the same values wrong in a later one"
    fix = "what one call leaves (buffers, caches, counters) must not reach the next"
    return Diagnosis(f"race/{name}", "RACE", summary, 1.0, _counted(moved, "the two calls"), fix=fix)


@door("behaviour/differs_from_run_to_run")
def differs_from_run_to_run(again: Again) -> Diagnosis | None:
    """Repeated calls differ; where kernels run on the CPU, calls with other orders of threads."""
    on_cpu, actual = CUDA_ON_CPU in again.experiment.backends, again.seen.actual
    runs = [again.run(schedule=each) for each in (1, 2)] if on_cpu else [again.call(number) for number in range(3)]
    where = {name: again.seen.right[name] & False for name in actual if name in again.seen.right}
    for run in runs:
        for name, differs in again.moved(actual, run).items():
            where[name] |= differs
    moved = {name: differs for name, differs in where.items() if bool(differs.any())}
    if not moved:
        return None
    name = next(iter(moved))
    how = "in another order of threads and blocks" if on_cpu else "from call to call"
    summary = f"{name} differs {how}, by more than the order of atomic additions allows"
    evidence = _counted(moved, f"{1 + sum(run is not None for run in runs)} runs")
    return Diagnosis(f"race/{name}", "RACE", summary, again.share(moved), evidence)


@door("behaviour/reads_what_was_never_written")
def reads_what_was_never_written(again: Again) -> Diagnosis | None:
    """Two runs differ whose memory held NaN and 7.0 before them."""
    seen = again.seen
    moved = again.moved(*halved(lambda some: [again.run(unwritten=each) for each in some], (math.nan, 7.0)))
    if not moved:
        return None
    wrong = {name: where | ~seen.right[name] & ~seen.actual[name].isfinite() for name, where in moved.items()}
    name = next(iter(moved))
    summary = f"{name} depends on what memory held before the run: it, or its scratch, is read before it is written"
    evidence = _counted(moved, "memory full of NaN and full of 7.0")
    fix = "use torch.zeros for what is added to, and store every element of a torch.empty"
    return Diagnosis(f"unwritten/{name}", "N2", summary, again.share(wrong), evidence, fix=fix)


@door("behaviour/right_without_dead_rows")
def right_without_dead_rows(again: Again) -> Diagnosis | None:
    """The same values right with a mask that shows every key to the rows from which it hides all."""
    mask, seen = again.experiment.values.get("mask"), again.seen
    name = next((name for name in seen.own if bool((~seen.actual[name].isfinite() & ~seen.right[name]).any())), None)
    if name is None or mask is None or bool(mask.any(-1).all()):
        return None
    values = {**again.experiment.values, "mask": mask | ~mask.any(-1, keepdim=True)}
    shown = run_again(replace(again.experiment, values=values), again.assigned)
    if shown is None or not shown.measured.comparison.matches:
        return None
    summary = f"rows that see no key make {name} NaN: exp(-inf - -inf), or 0 / 0"
    evidence = "with a mask that shows those rows every key, the same values give right results"
    return Diagnosis("dead/nan", "N1", summary, 1.0, (evidence,), fix=DEAD_FIX)


@door("behaviour/multiplies_coarser")
def multiplies_coarser(again: Again) -> Diagnosis | None:
    """What came is within the budget of the dots that were read in its compiled code, and finer ones were asked for."""
    coarser, case, measured = coarser_dots(again.experiment), again.experiment.case, again.seen.measured
    if not coarser:
        return None
    way, declared, recovery = coarsest(coarser), dots_of(again.experiment), measured.comparison.recovery
    precision = precision_of(case.dtype, way)
    if not compare(case, measured.x, measured.trace, precision, recovery=recovery, blame=False).matches:
        return None
    summary = f"the dots multiply in {way}, and the check expects {declared}"
    evidence = (f"compiled: {dots_in_words(coarser)}", f"every result is within the budget of {way} dots")
    places = [
        Where(dot.file, line, line_of(dot.file, line).strip(), kernel=dot.by) for dot in coarser for line in dot.lines
    ]
    fix = f'tl.dot(..., input_precision="{declared}"), whose default is "tf32"; or check with --dots {way}'
    return Diagnosis(f"precision/{way}", "PREC", summary, 1.0, evidence, tuple(map(among, places)), fix)


# The last resort for a check of one layout, which takes a few on a quiet machine.
_SECONDS = 600


@door("behaviour/right_in_the_interpreter")
def right_in_the_interpreter(again: Again) -> Diagnosis | None:
    """The same case in the same layout is right in Triton's interpreter, in a process of its own."""
    if not again.experiment.command or COMPILED not in again.experiment.backends:
        return None
    environment = os.environ | {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": "", "GRADPROBE_FIX_BUDGET": "0"}
    where = run_name(again.assigned)
    layout = {"runs": [where], "device": "cpu", "recover": False}
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = with_others(again.experiment.command, ("layout", "runs", "device"), {**layout, "json": report})
        words = gradprobe_command(*shlex.split(command)[1:])
        try:
            list(run_programs([Program(words, environment)], timeout=_SECONDS, grouped=False))
            verdict = json.loads(report.read_text())["verdict"]
        except (Failure, OSError, ValueError, KeyError):
            return None
    if verdict != "match":
        return None
    name = again.seen.own[0]
    summary = f"{name} is right in Triton's interpreter and wrong compiled"
    evidence = (
        f"the same case in {where} matches with --device cpu: no formula, mask or address is wrong",
        "only compiled code can do it: the order of programs and threads, pipelining, the compiler",
    )
    fix = "clear Triton's cache; then launch with num_stages=1, and with other num_warps"
    return Diagnosis(f"compiler/{name}", "COMP", summary, 1.0, evidence, fix=fix)
