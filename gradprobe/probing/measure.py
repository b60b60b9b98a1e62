"""Measures a run: its results compared with the reference, their identities, and the first mismatch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING

from ..inputs.draw import outputs_of
from ..inputs.tensor_layouts import Inputs, place
from ..model.assignment import OUTPUTS, PLAIN
from ..model.failures import ReferenceFailure
from ..model.intermediates import DERIVED
from ..model.mechanisms import gathered
from ..numerics.budget import Recovery
from ..numerics.compare import attention_of
from ..numerics.declared_precision import exactly, precision_of
from ..numerics.evidence import Measured
from ..numerics.identities import Invariant
from ..numerics.sieve import is_large
from ..runtime.run import run_target
from ..runtime.trace import Trace
from ..targets.find import Target
from .experiment import Experiment, Measurement, coarser_dots, declared_way, derived, dots_in_words, dots_of

if TYPE_CHECKING:
    from ..numerics.coarser import CoarserDots


def measure(
    experiment: Experiment, inputs: Inputs, trace: Trace, recovery: Recovery | None = None, *, coarse: bool = False
) -> Measured:
    """Compares a trace, tries its identities, and locates its first mismatch.

    Args:
        coarse: whether by an arithmetic that is coarser than the contract.

    Raises:
        ReferenceFailure: the reference breaks an identity that it should keep.
    """
    rows, values = None, inputs.values
    if recovery is not None:
        from ..numerics.rows import rows_of

        rows = rows_of(experiment.case, recovery)
    case = rows.case(experiment.case) if rows else experiment.case
    precision = precision_of(case.dtype, dots_of(experiment))
    precision = exactly(precision) if case.pattern == "dyadic" else precision
    # What is kept for later holds the values alone, not the tensors that the target was given.
    problem = cache(partial(attention_of if rows is None else rows.problem, case, values))
    of = Measurement(experiment, inputs.layout, case, problem, precision, recovery, coarse)
    is_by_formulas, timed = experiment.reference is None, experiment.stopwatch.timed
    if is_by_formulas and recovery is None and not coarse:
        with timed("compare"), of.multiplying():
            sifted = experiment.sieve.sift(case, values, trace, precision, of.tick)
        if sifted is not None:
            comparison = sifted.comparison(partial(of.compared, trace))
            return Measured(problem, trace, comparison, None, tuple(sifted.invariants), _coarser_dots(experiment))
    reference = _reference_trace(experiment, inputs)
    if rows and reference is not None:
        reference = Trace(rows.results(reference.values), reference.sources)
    is_by_block = is_by_formulas and is_large(case, values, trace, precision, is_recovered=recovery is not None)
    with timed("compare"), of.multiplying():
        if is_by_block:
            from ..numerics.by_block import BlockComparison

            blocks = BlockComparison(case, values, trace, precision, rows, recovery, coarse, of.evaluated)
            comparison, invariants = blocks.compared(partial(of.compared, trace), of.tick, until_wrong=coarse)
        else:
            comparison = of.compared(trace, reference)
            invariants = of.identities(trace, comparison)
        found = Measured(problem, trace, comparison, None, invariants, _coarser_dots(experiment))
        return _judged(of, found, is_by_formulas=is_by_formulas, is_by_block=is_by_block)


def _coarser_dots(experiment: Experiment) -> tuple[CoarserDots, ...]:
    found = coarser_dots(experiment)
    if not found:
        return ()
    from ..numerics.coarser import CoarserDots

    return (CoarserDots(declared_way(experiment) or "", dots_in_words(found)),)


def _judged(of: Measurement, found: Measured, *, is_by_formulas: bool, is_by_block: bool) -> Measured:
    """What was measured; of what differs whether other units or a coarser arithmetic explain it, and where it is."""
    if is_by_formulas and not found.comparison.matches:
        from .mismatch import in_its_units

        found = in_its_units(of, found)
    plain, heads = found, {}
    is_scattering = of.case.dtype != "float32" and of.case.family == "softmax"
    if is_scattering and is_by_formulas and not (of.is_coarse or is_by_block):
        from ..numerics.evenness import heads_by_result

        heads = heads_by_result(of.case, of.x(), found.trace, found.comparison)
    if is_by_formulas and not (found.comparison.matches or of.is_coarse):
        from .mismatch import by_coarser

        found = by_coarser(of, found, heads)
    if heads and found.comparison.matches:
        from ..numerics.head_errors import evenness

        even = gathered("evenness", evenness, of.x(), found.trace, plain.comparison, heads)
        found = replace(found, invariants=(*found.invariants, *even))
    _refuse_broken(of.experiment.reference, found.invariants)
    # Of the coarser arithmetic only whether it explains all is asked.
    if found.comparison.matches or of.is_coarse:
        return found
    from ..numerics.locate import locate

    return replace(found, first=locate(of.x(), found.trace, found.comparison))


def _refuse_broken(reference: Target | None, invariants: Iterable[Invariant]) -> None:
    """Refuses a reference, a user's own or the built-in one, that breaks an identity."""
    for invariant in invariants:
        if invariant.of == "reference" and not invariant.holds:
            name = reference.name if reference else "the built-in reference"
            raise ReferenceFailure(
                f"the verdict is about the reference: {name} breaks {invariant.name} "
                f"(off by {invariant.residual:.3g}, allowed {invariant.budget:.3g})",
                "a reference is checked before it is used: correct it, or compute it in float64",
            )


def _reference_trace(experiment: Experiment, inputs: Inputs) -> Trace | None:
    """The results of a user's own reference on the same values in float64, checked against the formulas."""
    reference, case = experiment.reference, experiment.case
    if reference is None:
        return None
    own = {name: value for name, value in inputs.values.items() if name not in (*OUTPUTS, *DERIVED)}
    values = {name: value.double() if value.is_floating_point() else value for name, value in own.items()}
    values |= derived(replace(experiment, target=reference), values)
    wide = values | outputs_of(case, reference.outputs, values)
    experiment.tick(f"reference {reference.name}", 0.0, f"{inputs.layout}, the reference")
    with experiment.stopwatch.timed("reference"):
        trace = run_target(reference, replace(case, shapes=PLAIN), place(wide, ())).trace
        if trace is not None:
            from ..auditing.target import refuse_other_formulas

            refuse_other_formulas(reference, case, attention_of(case, inputs.values), trace, dots_of(experiment))
    return trace
