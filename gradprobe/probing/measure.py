"""Measures a run: its results compared with the reference, and the first mismatch."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial

from torch import Tensor

from ..inputs.draw import in_float64, outputs_of
from ..inputs.tensor_layouts import Inputs, place
from ..model.assignment import OUTPUTS
from ..model.case import Case
from ..model.failures import ReferenceFailure
from ..model.intermediates import DERIVED
from ..numerics.budget import Recovery
from ..numerics.compare import Comparison, Evaluate, attention_of, compare
from ..numerics.declared_precision import CoarserArithmetic, Precision, exactly, precision_of
from ..numerics.evidence import MeasuredRun
from ..reference import Attention, Tile, evaluate
from ..runtime.run import Trace, run_target
from ..targets.find import Target
from .experiment import (
    Experiment,
    coarser_dots,
    declared_way,
    derived,
    dots_in_words,
    dots_of,
    layouts_of,
)

# Scores of a case below which the whole budget costs next to nothing.
LEAST_SCORES = 1 << 22


def measure(
    experiment: Experiment, inputs: Inputs, trace: Trace, recovery: Recovery | None = None, *, coarse: bool = False
) -> MeasuredRun:  # fmt: skip
    """Compares a trace, `coarse` by a coarser arithmetic, and locates its first mismatch."""
    of, reference = _Measurement(experiment, inputs, recovery, coarse), None
    is_by_formulas = experiment.reference is None
    if experiment.reference is not None:
        reference = reference_trace(experiment, experiment.reference, inputs)
    with experiment.stopwatch.timed("compare"):
        by_block, whole = None, cache(partial(of.compared, trace, reference))
        is_large = of.case.scores >= LEAST_SCORES and not of.precision.exact
        if is_large and is_by_formulas and recovery is None and not coarse:
            by_block = _by_blocks(experiment, of, trace, whole)
        found = MeasuredRun(of.x, trace, by_block or whole(), None)
        if dots := coarser_dots(experiment):
            how = f"{declared_way(experiment)} dots are declared, and compiled were {dots_in_words(dots)}"
            found = replace(found, coarser=(CoarserArithmetic("dots", how),))
        if is_by_formulas and not found.comparison.matches:
            found = _in_its_units(of, found)
        if is_by_formulas and not coarse:
            found = _by_coarser(of, found, by_block is not None)
        if found.comparison.matches:
            return found
        from ..numerics.locate import locate

        return replace(found, first=locate(of.x(), found.trace, found.comparison))


class _Measurement:
    def __init__(
        self, experiment: Experiment, inputs: Inputs, recovery: Recovery | None, is_coarse: bool
    ) -> None:
        self._experiment, self._layout, self._recovery = experiment, inputs.layout, recovery
        self.case, self.values = experiment.case, inputs.values
        precision = precision_of(self.case.dtype, dots_of(experiment))
        self.precision = exactly(precision) if self.case.pattern == "dyadic" else precision
        self._held = self.precision.coarser if is_coarse else self.precision
        # What is kept for later holds the values alone, not the tensors that the target was given.
        self.x = cache(partial(attention_of, self.case, self.values))

    def compared(
        self, trace: Trace, reference: Trace | None = None, held: Precision | None = None, by: Evaluate | None = None
    ) -> Comparison:  # fmt: skip
        return compare(
            self.case, self.x(), trace, held or self._held,
            reference=reference, recovery=self._recovery, evaluate=by or self.evaluated, tick=self.tick,
        )  # fmt: skip

    def evaluated(
        self, x: Attention, tile: Tile, given: Mapping[str, Tensor] | None
    ) -> dict[str, Tensor]:
        with self._experiment.stopwatch.timed("reference"):
            return evaluate(x, tile, given)

    def tick(self, fraction: float) -> None:
        self._experiment.tick(f"comparing {self._layout}", fraction, f"{self._layout}, compared")


def _by_blocks(
    experiment: Experiment, of: _Measurement, trace: Trace, whole: Callable[[], Comparison]
) -> Comparison | None:
    from ..numerics.sieve import LargeRun, LargeRuns

    if not experiment.large:
        is_repeated = len(layouts_of(of.case)) > 1 or of.case.repeat > 1
        experiment.large.append(LargeRuns(several=is_repeated))
    run = LargeRun(of.case, of.values, trace, of.precision, of.evaluated)
    return experiment.large[0].compared(run, whole, of.tick)


def _in_its_units(of: _Measurement, found: MeasuredRun) -> MeasuredRun:
    from ..numerics.conventions import in_other_conventions

    read, comparison, conventions = in_other_conventions(
        of.case, of.x(), found.trace, found.comparison, of.compared
    )
    if not conventions:
        return found
    meant = MeasuredRun(found.problem, read, comparison, None)
    if not of.case.strict:
        return replace(meant, coarser=found.coarser, conventions=conventions, unread=found.trace)
    from ..numerics.locate import locate

    first = None if comparison.matches else locate(of.x(), read, comparison)
    return replace(found, conventions=conventions, as_read=replace(meant, first=first))


def _by_coarser(of: _Measurement, plain: MeasuredRun, is_by_block: bool) -> MeasuredRun:
    found, heads = plain, {}
    if of.case.dtype != "float32" and of.case.family == "softmax" and not is_by_block:
        from ..numerics.evenness import heads_by_result

        heads = heads_by_result(of.case, of.x(), plain.trace, plain.comparison)
    if not plain.comparison.matches:
        from ..numerics.coarser import explained

        compared = partial(of.compared, plain.trace, None)
        about = (of.case, of.x(), plain.trace, plain.comparison)
        lenient, coarser = explained(*about, heads, compared)
        found = replace(plain, coarser=(*coarser, *plain.coarser))
        if coarser and not of.case.strict:
            found = replace(found, comparison=lenient)
    if heads and found.comparison.matches:
        from ..numerics.evenness import evenness

        found = replace(found, invariants=tuple(evenness(heads)))
    return found


# Of what IEEE float32 may err by, what the reference of such a kernel may. Only float64 is better, by 29 bits. This
# lies halfway: a float32 reference, whose independent errors average out in long sums, stands clearly beyond it, and a
# float64 one clearly within.
SHARE_OF_FLOAT32 = 2.0**-14
WAY_OUT = "a reference is checked before it is used: correct it, or leave out --reference"


def reference_trace(experiment: Experiment, reference: Target, inputs: Inputs) -> Trace | None:
    """Its results in float64; ReferenceFailure where they are not those of the formulas."""
    case, values = experiment.case, in_float64(inputs.values)
    for name in (*OUTPUTS, *DERIVED):
        values.pop(name, None)
    values |= derived(replace(experiment, target=reference), values)
    wide = values | outputs_of(case, reference.outputs, values)
    experiment.tick(f"reference {reference.name}", 0.0, f"{inputs.layout}, the reference")
    with experiment.stopwatch.timed("reference"):
        asked = replace(case, shapes=reference.shapes, implied=reference.implied)
        trace = run_target(reference, asked, place(wide, ())).trace
        if trace is not None:
            x = attention_of(case, inputs.values)
            precision = precision_of(case.dtype, dots_of(experiment))
            _refuse_other_formulas(reference.name, case, x, trace, is_exact=not precision.matrix)
    return trace


def _refuse_other_formulas(
    name: str, case: Case, x: Attention, trace: Trace, *, is_exact: bool
) -> None:
    """It may err as IEEE float32 may; beside a kernel in that arithmetic by a share of it."""
    from ..numerics.locate import departure, locate

    subject = "the verdict is about the reference:"
    comparison = compare(case, x, trace, precision_of("float32", "ieee"))
    if (first := locate(x, trace, comparison)) is not None:
        raise ReferenceFailure(
            f"{subject} {name} departs from {departure(case, first)}", WAY_OUT
        )
    worst = max(comparison.findings.values(), key=lambda finding: finding.max_ratio)
    if is_exact and worst.max_ratio > SHARE_OF_FLOAT32:
        words = (
            f"{worst.name} of {name} errs by {worst.max_ratio:.1g} of what float32 may err by"
        )
        raise ReferenceFailure(
            f"{subject} {words}, and beside a kernel in float32 it may by {SHARE_OF_FLOAT32:.1g}",
            "a reference is checked before it is used: compute it in float64",
        )
