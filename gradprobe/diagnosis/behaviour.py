"""What running a target again shows that no hypothesis predicts."""

import math
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from ..faults.fault_rows import DEAD_FIX
from ..faults.hypothesis import Hypothesis, WrongRun
from ..model.assignment import Assigned
from ..model.failures import Failure
from ..model.layout_run import MISMATCH
from ..model.report import CONSISTENT, NAMED, CauseLine, Diagnosis
from ..numerics.compare import allowed_on, compare, judge, tiles_of
from ..numerics.declared_precision import Tensors, precision_of
from ..numerics.evidence import LayoutRun, MeasuredRun
from ..probing.experiment import Experiment, coarser_dots, dots_in_words, dots_of, inputs_of
from ..probing.measure import measure
from ..probing.observe import execute
from ..reference import evaluate
from ..reference.attention import BY_ROW
from .lines import where_at


def observed_in(experiment: Experiment, run: LayoutRun) -> WrongRun:
    assert run.measured is not None
    return _observed(experiment, run.measured, inputs_of(experiment, run.assigned).tensors)


def run_again(experiment: Experiment, assigned: Assigned) -> WrongRun | None:
    """None where the target refuses."""
    with suppress(Failure):
        inputs = inputs_of(experiment, assigned)
        trace = execute(experiment, inputs).outcome.trace
        if trace is not None:
            return _observed(experiment, measure(experiment, inputs, trace), inputs.tensors)
    return None


def _observed(experiment: Experiment, measured: MeasuredRun, tensors: Tensors) -> WrongRun:
    x, trace, comparison = measured.x, measured.trace, measured.comparison
    actual, right, expected, allowed = (dict[str, Tensor]() for _ in range(4))
    for name, value in trace.values.items():
        actual[name], right[name] = value.double(), value.isnan() & False
        expected[name], allowed[name] = actual[name] * 0, actual[name] * 0
        if name not in BY_ROW:
            _, expected[name], allowed[name], right[name] = comparison.judged(trace, name)
    for tile in tiles_of(experiment.case, x):
        place, values = (tile.batch, tile.heads, tile.rows), evaluate(x, tile)
        budget = allowed_on(x, tile, values, comparison.precision, comparison.recovery)
        for name in actual.keys() & {*BY_ROW}:
            judged = judge(trace.values[name][place], values, budget, name)
            _, expected[name][place], allowed[name][place], right[name][place] = judged
    own = [name for name, of in comparison.findings.items() if of.status == MISMATCH]
    expected = {**comparison.expected, **expected}
    about = experiment.case, x, actual, expected, right, tuple(own), tensors, allowed
    return WrongRun(*about, measured, bool(experiment.backends))


# --- runs once more


@dataclass(frozen=True)
class FurtherRuns:
    experiment: Experiment
    assigned: Assigned
    seen: WrongRun

    def is_right(self, **changes: Any) -> bool:
        ran = run_again(replace(self.experiment, **changes), self.assigned)
        return ran is not None and ran.measured.comparison.matches

    def on_memory_of(self, number: float) -> Tensors:
        case = replace(self.experiment.case, poison=True)
        seen = run_again(replace(self.experiment, unwritten=number, case=case), self.assigned)
        return seen.actual if seen is not None else {}

    def moved(self, first: Tensors, other: Tensors) -> dict[str, Tensor]:
        moved, both = dict[str, Tensor](), first.keys() & other.keys()
        for name in filter(both.__contains__, self.seen.right):
            a, b = first[name], other[name]
            is_near = (a - b).abs() <= 2 * self.seen.allowed[name]
            where = ~(is_near | (a == b) | (a.isnan() & b.isnan()))
            if bool(where.any()):
                moved[name] = where
        return moved

    def share(self, moved: Tensors) -> float:
        wrong = sum(map(self.seen.wrong, self.seen.wrong_names))
        there = sum(int((where & ~self.seen.right[name]).sum()) for name, where in moved.items())
        return there / max(1, wrong)


def differs_from_run_to_run(again: FurtherRuns) -> Diagnosis | None:
    """Where no access is seen on a GPU; or what only the first call has wrong."""
    second = run_again(again.experiment, again.assigned)
    moved = again.moved(again.seen.actual, second.actual) if second is not None else {}
    if second is None or not moved:
        return None
    name = next(iter(moved))
    if second.measured.comparison.matches and again.is_right():
        summary = f"{name} is wrong in the first call and right in later ones"
        fix = "zero what a kernel adds to before each config: triton.autotune(reset_to_zero=...)"
        return Diagnosis(f"autotune/{name}", "ATUNE", summary, 1.0, fix=fix)
    summary = f"{name} differs from call to call by more than the order of additions allows"
    return Diagnosis(f"race/{name}", "RACE", summary, again.share(moved))


def reads_what_was_never_written(again: FurtherRuns) -> Diagnosis | None:
    seen, moved = again.seen, again.moved(again.on_memory_of(math.nan), again.on_memory_of(7.0))
    wrong = {of: at | ~seen.right[of] & ~seen.actual[of].isfinite() for of, at in moved.items()}
    for name, where in moved.items():
        summary = f"{name} depends on what memory held: it, or its scratch, is read before it is written"
        evidence = (
            f"{int(where.sum()):,} elements of {name} differ between memory of NaN and of 7.0"
        )
        fix = "use torch.zeros for what is added to; store every element of a torch.empty"
        share = again.share(wrong)
        return Diagnosis(f"unwritten/{name}", "N2", summary, share, (evidence,), fix=fix)
    return None


def right_without_dead_rows(again: FurtherRuns) -> Diagnosis | None:
    mask, seen = again.experiment.values.get("mask"), again.seen
    broken = [of for of in seen.own if (~seen.actual[of].isfinite() & ~seen.right[of]).any()]
    if not broken or mask is None or bool(mask.any(-1).all()):
        return None
    open_mask = mask | ~mask.any(-1, keepdim=True)
    if not again.is_right(values={**again.experiment.values, "mask": open_mask}):
        return None
    summary = f"rows that see no key make {broken[0]} NaN: exp(-inf - -inf), or 0 / 0"
    evidence = "with a mask that shows them every key all is right"
    return Diagnosis("dead/nan", "N1", summary, 1.0, (evidence,), fix=DEAD_FIX)


def multiplies_coarser(again: FurtherRuns) -> Diagnosis | None:
    experiment, measured = again.experiment, again.seen.measured
    dots = coarser_dots(experiment)
    if not dots:
        return None
    way, recovery = dots[0].way, measured.comparison.recovery  # the coarsest first
    about = experiment.case, measured.x, measured.trace, precision_of(experiment.case.dtype, way)
    if not compare(*about, recovery=recovery, blame=False).matches:
        return None
    declared, evidence = dots_of(experiment), (dots_in_words(dots),)
    where = list[CauseLine]()
    for dot in dots:
        for line in dot.lines:
            where.append(where_at(dot.file, line, dot.by))
    summary = f"the dots multiply in {way}, and the check expects {declared}"
    fix = f'tl.dot(..., input_precision="{declared}"), or check with --dots {way}'
    return Diagnosis(f"precision/{way}", "PREC", summary, 1.0, evidence, tuple(where), fix)


def behaving(again: FurtherRuns, best: Hypothesis | None) -> list[Diagnosis]:
    """The first that explains nearly all; where no hypothesis is named, also those of a part."""
    is_finite = all(bool(value.isfinite().all()) for value in again.seen.actual.values())
    is_elsewhere = best is not None and best.tensor and best.not_finite
    asked = {
        multiplies_coarser: True,  # what was compiled says whose rounding it is
        differs_from_run_to_run: best is None or best.kind in ("factor", "accumulation"),
        reads_what_was_never_written: best is None or not (is_finite or is_elsewhere),
        right_without_dead_rows: best is None,
    }
    found = list[Diagnosis]()
    for explain, is_asked in asked.items():
        diagnosis = explain(again) if is_asked else None
        if diagnosis is not None and diagnosis.explained >= NAMED:
            return [diagnosis]
        if diagnosis is not None and best is None and diagnosis.explained >= CONSISTENT:
            found.append(diagnosis)
    return found
