"""A user's own reference in a check: its results, and whether it may judge a kernel."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from ..inputs.draw import outputs_of
from ..inputs.tensor_layouts import Inputs, place
from ..model.assignment import OUTPUTS, PLAIN
from ..model.case import Case
from ..model.failures import ReferenceFailure
from ..model.intermediates import DERIVED, lookup
from ..model.layout_run import Element
from ..numerics.compare import attention_of, compare
from ..numerics.declared_precision import precision_of
from ..numerics.locate import locate
from ..reference import Attention
from ..runtime.run import run_target
from ..runtime.trace import Trace
from ..targets.find import Target
from .experiment import Experiment, derived, dots_of

# Of what IEEE float32 may err by, what the reference of such a kernel may. Only float64 is better, by 29 bits. This
# lies halfway: a float32 reference, whose independent errors average out in long sums, stands clearly beyond it, and a
# float64 one clearly within.
SHARE_OF_FLOAT32 = 2.0**-14
WAY_OUT = "a reference is checked before it is used: correct it, or leave out --reference"


def reference_trace(experiment: Experiment, reference: Target, inputs: Inputs) -> Trace | None:
    """Its results on the same values in float64; ReferenceFailure where they are not those of the formulas."""
    case, values = experiment.case, dict[str, Tensor]()
    for name, value in inputs.values.items():
        if name not in (*OUTPUTS, *DERIVED):
            values[name] = value.double() if value.is_floating_point() else value
    values |= derived(replace(experiment, target=reference), values)
    wide = values | outputs_of(case, reference.outputs, values)
    experiment.tick(f"reference {reference.name}", 0.0, f"{inputs.layout}, the reference")
    with experiment.stopwatch.timed("reference"):
        trace = run_target(reference, replace(case, shapes=PLAIN), place(wide, ())).trace
        if trace is not None:
            _refuse_other_formulas(
                reference, case, attention_of(case, inputs.values), trace, dots_of(experiment)
            )
    return trace


def _refuse_other_formulas(
    reference: Target, case: Case, x: Attention, trace: Trace, dots: str
) -> None:
    """It may err as IEEE float32 may; beside a kernel in that arithmetic by a share of it."""
    comparison = compare(case, x, trace, precision_of("float32", "ieee"))
    first = locate(x, trace, comparison)
    subject = "the verdict is about the reference:"
    if first is not None:
        raise ReferenceFailure(
            f"{subject} {reference.name} departs from {departure(case, first)}", WAY_OUT
        )
    worst = max(comparison.findings.values(), key=lambda finding: finding.max_ratio)
    if not precision_of(case.dtype, dots).matrix and worst.max_ratio > SHARE_OF_FLOAT32:
        raise ReferenceFailure(
            f"{subject} {worst.name} of {reference.name} errs by {worst.max_ratio:.1g} of what float32 may err by, "
            f"and beside a kernel in float32 it may by {SHARE_OF_FLOAT32:.1g}",
            "a reference is checked before it is used: compute it in float64",
        )


def departure(case: Case, first: Element) -> str:
    """The formula that it departs from, the place, and both numbers."""
    row = lookup(first.intermediate)
    step = row.step(case.family) if row is not None else None
    axes = [axis for axis in ("batch", "head", "row", "col") if getattr(first, axis) is not None]
    where = ", ".join(f"{axis} {getattr(first, axis)}" for axis in axes)
    formula = f"{first.intermediate} = {step.formula}" if step is not None else first.intermediate
    return f"{formula}: at {where} it gives {first.actual:.6g}, the formula {first.expected:.6g}"
