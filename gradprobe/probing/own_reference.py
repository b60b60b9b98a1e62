"""A user's own reference in a check: whether it keeps to the formulas on the check's values, and is precise enough."""

from __future__ import annotations

from ..model.case import Case
from ..model.failures import ReferenceFailure
from ..model.intermediates import lookup
from ..model.layout_run import Element
from ..numerics.compare import compare
from ..numerics.declared_precision import precision_of
from ..numerics.locate import locate
from ..reference import Attention
from ..runtime.trace import Trace
from ..targets.find import Target

# Of what IEEE float32 may err by, what the reference of such a kernel may. Only float64 is better, by 29 bits. This
# lies halfway: a float32 reference, whose independent errors average out in long sums, stands clearly beyond it, and a
# float64 one clearly within.
SHARE_OF_FLOAT32 = 2.0**-14
WAY_OUT = "a reference is checked before it is used: correct it, or leave out --reference"


def refuse_other_formulas(reference: Target, case: Case, x: Attention, trace: Trace, dots: str) -> None:
    """Refuses a user's own reference that departs from the formulas, or is not precise enough to judge a kernel.

    It may err by what IEEE float32 arithmetic may: a reference in float32 is right. Beside a kernel in that very
    arithmetic it must be better by SHARE_OF_FLOAT32, or its errors would be laid on the kernel.

    Raises:
        ReferenceFailure: an intermediate departs from its formula, or is no more precise than the kernel.
    """
    comparison = compare(case, x, trace, precision_of("float32", "ieee"))
    first = locate(x, trace, comparison)
    subject = "the verdict is about the reference:"
    if first is not None:
        raise ReferenceFailure(f"{subject} {reference.name} departs from {departure(case, first)}", WAY_OUT)
    worst = max(comparison.findings.values(), key=lambda finding: finding.max_ratio)
    if not precision_of(case.dtype, dots).matrix and worst.max_ratio > SHARE_OF_FLOAT32:
        raise ReferenceFailure(
            f"{subject} {worst.name} of {reference.name} errs by {worst.max_ratio:.1g} of what float32 may err by, "
            f"and beside a kernel in float32 it may by {SHARE_OF_FLOAT32:.1g}",
            "a reference is checked before it is used: compute it in float64",
        )


def departure(case: Case, first: Element) -> str:
    """The formula that the reference departs from, the place, and both numbers."""
    row = lookup(first.intermediate)
    step = row.step(case.family) if row is not None else None
    at = {axis: getattr(first, axis) for axis in ("batch", "head", "row", "col")}
    where = ", ".join(f"{axis} {index}" for axis, index in at.items() if index is not None)
    formula = f"{first.intermediate} = {step.formula}" if step is not None else first.intermediate
    return f"{formula}: at {where} it gives {first.actual:.6g}, the formula {first.expected:.6g}"
