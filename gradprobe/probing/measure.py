"""Compares the results of one run with the reference, element by element and by identities."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from ..budgets.precision import precision_of
from ..cases.case import OUTPUTS, Case
from ..cases.layouts import Inputs, place
from ..cases.outputs import outputs_of
from ..cases.shapes import PLAIN
from ..inside.recovery import Recovery
from ..judging.accumulators import Coarser, explained
from ..judging.compare import Comparison, Evaluate, attention_of, compare
from ..judging.invariants import identities
from ..judging.locate import locate
from ..judging.measured import Measured
from ..judging.operands import Operand, rounded_operand
from ..reference import Attention, Tile, evaluate
from ..running.run import run_target
from ..running.trace import Trace
from .audit import refuse_broken, refuse_other_formulas
from .experiment import DERIVED, Experiment, derived

if TYPE_CHECKING:
    from torch import Tensor


def measure(
    experiment: Experiment, inputs: Inputs, trace: Trace, recovery: Recovery | None = None, *, coarse: bool = False
) -> Measured:
    """Compares a trace, tries its identities, and locates its first mismatch.

    Args:
        coarse: whether by an arithmetic that is coarser than the contract.

    Raises:
        ReferenceFailure: the reference breaks an identity that it should keep.
    """
    case, stopwatch = experiment.case, experiment.stopwatch
    x = attention_of(case, inputs.values)
    reference = _reference_trace(experiment, inputs, x)
    precision = precision_of(case.dtype, dots_of(experiment))

    def timed(x: Attention, tile: Tile, given: Mapping[str, Tensor] | None) -> dict[str, Tensor]:
        with stopwatch.timed("reference"):
            return evaluate(x, tile, given)

    def tick(fraction: float) -> None:
        experiment.tick(f"comparing {inputs.layout}", fraction, f"{inputs.layout}, compared")

    def compared(evaluate: Evaluate) -> Comparison:
        held = precision.coarser if coarse else precision
        return compare(case, x, trace, held, reference=reference, recovery=recovery, evaluate=evaluate, tick=tick)

    with stopwatch.timed("compare"):
        comparison = compared(timed)
        coarser: tuple[Coarser | Operand, ...] = ()
        if not comparison.matches and reference is None and not coarse:
            lenient, coarser = _explained(case, x, trace, comparison, compared)
            comparison = comparison if case.strict else lenient
        invariants = identities(case, x, trace, comparison)
        refuse_broken(experiment.reference, invariants)
        return Measured(x, trace, comparison, locate(case, x, trace, comparison), tuple(invariants), coarser)


def _explained(
    case: Case, x: Attention, trace: Trace, comparison: Comparison, compared: Callable[[Evaluate], Comparison]
) -> tuple[Comparison, tuple[Coarser | Operand, ...]]:
    """The comparison with a proven coarser arithmetic judged as such, and what that arithmetic is."""
    found = rounded_operand(case, x, trace, comparison, compared)
    if found is not None:
        return found[0], (found[1],)
    return explained(case, x, trace, comparison)


def _reference_trace(experiment: Experiment, inputs: Inputs, x: Attention) -> Trace | None:
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
            refuse_other_formulas(reference, case, x, trace, dots_of(experiment))
    return trace


def dots_of(experiment: Experiment) -> str:
    """How dots multiply: as the case says; else TF32 for compiled float32 Triton kernels, their default."""
    case = experiment.case
    # TF32 is an arithmetic of GPUs; the interpreter multiplies in IEEE whatever it is told.
    if case.device == "cpu":
        return "ieee"
    if case.dots is not None or "dots" in experiment.target.takes:
        return case.dots or "ieee"
    return "tf32" if experiment.is_compiled and case.dtype == "float32" else "ieee"
