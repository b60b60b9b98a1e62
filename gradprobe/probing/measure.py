"""Measures a run: its results compared with the reference, their identities, and the first mismatch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cache, partial

from torch import Tensor

from ..inputs.draw import outputs_of
from ..inputs.tensor_layouts import Inputs, place
from ..model.assignment import OUTPUTS, PLAIN
from ..model.case import Case
from ..model.failures import ReferenceFailure
from ..model.intermediates import DERIVED
from ..model.mechanisms import gathered
from ..numerics.budget import Recovery
from ..numerics.by_block import BlockComparison
from ..numerics.coarser import Coarser, CoarserDots, explained
from ..numerics.compare import Comparison, Evaluate, attention_of, compare
from ..numerics.conventions import Convention, in_other_conventions
from ..numerics.declared_precision import Precision, exactly, precision_of
from ..numerics.evenness import HeadScatter, heads_by_result
from ..numerics.evidence import Measured
from ..numerics.float64 import multiplying
from ..numerics.head_errors import evenness
from ..numerics.identities import Invariant, identities
from ..numerics.locate import locate
from ..numerics.operands import Operand, OperandOfEach, rounded_operand
from ..numerics.roundings import Roundings, rounded_besides
from ..numerics.rows import problem_of, rows_of
from ..reference import Attention, Tile, evaluate
from ..runtime.run import run_target
from ..runtime.trace import Trace
from ..targets.find import Target
from .dots import coarser_dots, declared_way, dots_in_words, dots_of
from .experiment import Experiment, derived


def measure(
    experiment: Experiment, inputs: Inputs, trace: Trace, recovery: Recovery | None = None, *, coarse: bool = False
) -> Measured:
    """Compares a trace, tries its identities, and locates its first mismatch.

    Args:
        coarse: whether by an arithmetic that is coarser than the contract.

    Raises:
        ReferenceFailure: the reference breaks an identity that it should keep.
    """
    rows, stopwatch = rows_of(experiment.case, recovery), experiment.stopwatch
    case = rows.case(experiment.case) if rows else experiment.case
    precision = precision_of(case.dtype, dots_of(experiment))
    precision = exactly(precision) if case.pattern == "dyadic" else precision
    # What is kept for later holds the values alone, not the tensors that the target was given.
    values, layout = inputs.values, inputs.layout
    problem = cache(lambda: problem_of(case, values, rows))
    coarser: tuple[Coarser | Operand | OperandOfEach | Roundings | CoarserDots, ...] = ()
    if of_dots := coarser_dots(experiment):
        coarser += (CoarserDots(declared_way(experiment) or "", dots_in_words(of_dots)),)

    def timed(x: Attention, tile: Tile, given: Mapping[str, Tensor] | None) -> dict[str, Tensor]:
        with stopwatch.timed("reference"):
            return evaluate(x, tile, given)

    def tick(fraction: float) -> None:
        experiment.tick(f"comparing {layout}", fraction, f"{layout}, compared")

    def fast() -> AbstractContextManager[None]:
        return multiplying(values["q"].device, precision, experiment.products)

    def compared(
        evaluate: Evaluate, reference: Trace | None = None, held: Precision | None = None, of: Trace | None = None
    ) -> Comparison:
        x, of, held = problem(), of or trace, held or (precision.coarser if coarse else precision)
        with fast():
            return compare(case, x, of, held, reference=reference, recovery=recovery, evaluate=evaluate, tick=tick)

    def of_trace(other: Trace) -> Comparison:
        return compared(timed, of=other)

    if experiment.reference is None and recovery is None and not coarse:
        with stopwatch.timed("compare"), fast():
            sifted = experiment.sieve.sift(case, values, trace, precision, tick)
        if sifted is not None:
            comparison = sifted.comparison(partial(compared, timed))
            return Measured(problem, trace, comparison, None, tuple(sifted.invariants), coarser)
    reference = _reference_trace(experiment, inputs)
    if rows and reference is not None:
        reference = Trace(rows.results(reference.values), reference.sources)
    by_block = BlockComparison(case, values, trace, precision, rows, recovery, coarse, timed)
    with stopwatch.timed("compare"), fast():
        if reference is None and by_block.is_worth_it:
            comparison, invariants = by_block.compared(partial(compared, timed), tick, until_wrong=coarse)
        else:
            comparison = compared(timed, reference)
            invariants = tuple(identities(case, problem(), trace, comparison))
        came, conventions, as_read = trace, tuple[Convention, ...](), None
        if not comparison.matches and reference is None:
            read, found, conventions = in_other_conventions(case, problem(), trace, comparison, of_trace)
            if conventions and case.strict:
                first = None if found.matches else locate(problem(), read, found)
                as_read = Measured(problem, read, found, first, tuple(identities(case, problem(), read, found)))
            elif conventions:
                trace, comparison = read, found
                invariants = tuple(identities(case, problem(), trace, comparison))
        plain = comparison
        heads = (
            {} if reference or coarse or by_block.is_worth_it else heads_by_result(case, problem(), trace, comparison)
        )
        if not comparison.matches and reference is None and not coarse:
            lenient, proved = _judged_coarser(
                case, problem(), trace, comparison, heads, partial(compared, timed), compared
            )
            if proved and not case.strict:
                comparison = lenient
                invariants = tuple(identities(case, problem(), trace, comparison))
            coarser = (*proved, *coarser)
        if comparison.matches:
            invariants = (*invariants, *gathered("evenness", evenness, problem(), trace, plain, heads))
        _refuse_broken(experiment.reference, invariants)
        # Of the coarser arithmetic only whether it explains all is asked.
        first = None if comparison.matches or coarse else locate(problem(), trace, comparison)
        unread = None if trace is came else came
        return Measured(problem, trace, comparison, first, invariants, coarser, (), conventions, unread, as_read)


def _judged_coarser(
    case: Case,
    x: Attention,
    trace: Trace,
    plain: Comparison,
    heads: Mapping[str, Sequence[HeadScatter]],
    by_precision: Callable[..., Comparison],
    compared: Callable[[Evaluate], Comparison],
) -> tuple[Comparison, tuple[Coarser | Operand | OperandOfEach | Roundings, ...]]:
    """The comparison by an arithmetic that the target proves to have, and that; what proves most exactly goes first."""
    if (by_operand := rounded_operand(case, x, trace, plain, compared)) is not None:
        return by_operand[0], (by_operand[1],)
    lenient, proved = explained(case, x, trace, plain)
    if not lenient.matches and (
        found := rounded_besides(case, x, trace, plain, heads, lambda held: by_precision(held=held))
    ):
        return found[0], (found[1],)
    return lenient, proved


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
            from ..auditing.refusal import refuse_other_formulas

            refuse_other_formulas(reference, case, attention_of(case, inputs.values), trace, dots_of(experiment))
    return trace
