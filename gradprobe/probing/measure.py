"""Measures a run: its results compared with the reference, and the first mismatch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from typing import Any

from torch import Tensor

from ..inputs.tensor_layouts import Inputs
from ..model.mechanisms import gathered
from ..numerics.budget import Recovery
from ..numerics.compare import Comparison, Evaluate, attention_of, compare
from ..numerics.declared_precision import Precision, exactly, precision_of
from ..numerics.evidence import Measured
from ..reference import Attention, Tile, evaluate
from ..runtime.trace import Trace
from .experiment import Experiment, coarser_dots, declared_way, dots_in_words, dots_of, layouts_of

# Scores of a case below which the whole budget costs next to nothing.
LEAST_SCORES = 1 << 22


def measure(
    experiment: Experiment,
    inputs: Inputs,
    trace: Trace,
    recovery: Recovery | None = None,
    *,
    coarse: bool = False,
) -> Measured:
    """Compares a trace, `coarse` by an arithmetic coarser than the contract, and locates its first mismatch."""
    of, reference = _Measurement(experiment, inputs, recovery, coarse), None
    is_by_formulas = experiment.reference is None
    if experiment.reference is not None:
        from .own_reference import reference_trace

        reference = reference_trace(experiment, experiment.reference, inputs)
    with experiment.stopwatch.timed("compare"):
        comparison, whole = None, cache(partial(of.compared, trace, reference))
        is_large = of.case.scores >= LEAST_SCORES and not of.precision.exact
        if is_large and is_by_formulas and recovery is None and not coarse:
            comparison = _by_blocks(experiment, of, trace, whole)
        is_by_block = comparison is not None
        found = Measured(
            of.x, trace, comparison or whole(), None, coarser=_declared_coarser(experiment)
        )
        if is_by_formulas and not found.comparison.matches:
            found = _in_its_units(of, found)
        if is_by_formulas and not coarse:
            found = _by_coarser(of, found, is_by_block)
        # Of the coarser arithmetic only whether it explains all is asked.
        if found.comparison.matches or coarse:
            return found
        from ..numerics.locate import locate

        return replace(found, first=locate(of.x(), found.trace, found.comparison))


class _Measurement:
    """By what the results of one run are judged."""

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
        self,
        trace: Trace,
        reference: Trace | None = None,
        held: Precision | None = None,
        by: Evaluate | None = None,
    ) -> Comparison:
        """A trace compared, by another precision or evaluation if given."""
        return compare(
            self.case, self.x(), trace, held or self._held,
            reference=reference, recovery=self._recovery, evaluate=by or self.evaluated, tick=self.tick,
        )  # fmt: skip

    def evaluated(
        self, x: Attention, tile: Tile, given: Mapping[str, Tensor] | None
    ) -> dict[str, Tensor]:
        """A tile of the reference, timed."""
        with self._experiment.stopwatch.timed("reference"):
            return evaluate(x, tile, given)

    def tick(self, fraction: float) -> None:
        self._experiment.tick(f"comparing {self._layout}", fraction, f"{self._layout}, compared")


def _by_blocks(
    experiment: Experiment, of: _Measurement, trace: Trace, whole: Callable[[], Comparison]
) -> Comparison | None:
    """A large run compared block by block; None where totals have to be judged at once."""
    from ..numerics.large_run import LargeRun
    from ..numerics.walk import LargeRuns

    if not experiment.large:
        experiment.large.append(
            LargeRuns(several=len(layouts_of(of.case)) > 1 or of.case.repeat > 1)
        )
    run = LargeRun(of.case, of.values, trace, of.precision, of.evaluated)
    return experiment.large[0].compared(run, whole, of.tick)


def _declared_coarser(experiment: Experiment) -> tuple[Any, ...]:
    dots = coarser_dots(experiment)
    if not dots:
        return ()
    from ..numerics.coarser import CoarserDots

    return (CoarserDots(declared_way(experiment) or "", dots_in_words(dots)),)


def _in_its_units(of: _Measurement, found: Measured) -> Measured:
    """What was measured, read by the conventions of the target; strictly, only beside it."""
    from ..numerics.conventions import in_other_conventions

    read, comparison, conventions = in_other_conventions(
        of.case, of.x(), found.trace, found.comparison, of.compared
    )
    if not conventions:
        return found
    meant = Measured(found.problem, read, comparison, None)
    if not of.case.strict:
        return replace(meant, coarser=found.coarser, conventions=conventions, unread=found.trace)
    from ..numerics.locate import locate

    first = None if comparison.matches else locate(of.x(), read, comparison)
    return replace(found, conventions=conventions, as_read=replace(meant, first=first))


def _by_coarser(of: _Measurement, plain: Measured, is_by_block: bool) -> Measured:
    """What was measured, by an arithmetic that the target proves to have."""
    found, heads = plain, {}
    if of.case.dtype != "float32" and of.case.family == "softmax" and not is_by_block:
        from ..numerics.evenness import heads_by_result

        heads = heads_by_result(of.case, of.x(), plain.trace, plain.comparison)
    if not plain.comparison.matches:
        lenient, coarser = _coarser(of, plain, heads)
        found = replace(plain, coarser=(*coarser, *plain.coarser))
        if coarser and not of.case.strict:
            found = replace(found, comparison=lenient)
    if heads and found.comparison.matches:
        from ..numerics.head_errors import evenness

        even = gathered("evenness", evenness, of.x(), found.trace, plain.comparison, heads)
        found = replace(found, invariants=tuple(even))
    return found


def _coarser(
    of: _Measurement, found: Measured, heads: Mapping[str, Any]
) -> tuple[Comparison, tuple[Any, ...]]:
    """The comparison by that arithmetic, and what it is."""
    from ..numerics.coarser import explained

    about = (of.case, of.x(), found.trace, found.comparison)
    if of.case.dtype != "float32":
        from ..numerics.operands import rounded_operand

        by_operand = rounded_operand(*about, lambda evaluate: of.compared(found.trace, by=evaluate))
        if by_operand is not None:
            return by_operand[0], (by_operand[1],)
    lenient, sums = explained(*about)
    if heads and not lenient.matches:
        from ..numerics.roundings import rounded_besides

        besides = rounded_besides(*about, heads, partial(of.compared, found.trace, None))
        if besides is not None:
            return besides[0], (besides[1],)
    return lenient, sums
