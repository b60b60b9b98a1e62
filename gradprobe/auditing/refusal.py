"""Refuses a user's own reference on a check's values, by the formulas."""

from __future__ import annotations

from ..model.case import Case
from ..model.failures import ReferenceFailure
from ..model.intermediates import lookup
from ..model.layout_run import Element
from ..numerics.compare import compare
from ..numerics.declared_precision import precision_of
from ..numerics.identities import share_of_reference
from ..numerics.locate import locate
from ..reference import Attention
from ..runtime.trace import Trace
from ..targets.find import Target

_WAY_OUT = "a reference is checked before it is used: correct it, or leave out --reference"
_WIDER = "a reference is checked before it is used: compute it in float64"


def refuse_other_formulas(reference: Target, case: Case, x: Attention, trace: Trace, dots: str) -> None:
    """Refuses a user's own reference that departs from the formulas, or is not precise enough to judge a kernel.

    It may err by what IEEE float32 arithmetic may: a reference in float32 is right. Beside a kernel in that very
    arithmetic it must be as much better as the identities ask of it, or its errors would be laid on the kernel.

    Raises:
        ReferenceFailure: an intermediate departs from its formula, or is no more precise than the kernel.
    """
    comparison = compare(case, x, trace, precision_of("float32", "ieee"))
    first = locate(x, trace, comparison)
    if first is not None:
        raise ReferenceFailure(
            f"the verdict is about the reference: {reference.name} departs from {departure(case, first)}", _WAY_OUT
        )
    share = share_of_reference(precision_of(case.dtype, dots))
    worst = max(comparison.findings.values(), key=lambda finding: finding.max_ratio)
    if not precision_of(case.dtype, dots).matrix and worst.max_ratio > share:
        raise ReferenceFailure(
            f"the verdict is about the reference: {worst.name} of {reference.name} errs by {worst.max_ratio:.1g} of "
            f"what float32 may err by, and beside a kernel in float32 it may by {share:.1g}",
            _WIDER,
        )


def departure(case: Case, first: Element) -> str:
    """The formula that the reference departs from, the place, and both numbers."""
    row = lookup(first.intermediate)
    step = row.step(case.family) if row is not None else None
    at = {axis: getattr(first, axis) for axis in ("batch", "head", "row", "col")}
    where = ", ".join(f"{axis} {index}" for axis, index in at.items() if index is not None)
    formula = f"{first.intermediate} = {step.formula}" if step is not None else first.intermediate
    return f"{formula}: at {where} it gives {first.actual:.6g}, the formula {first.expected:.6g}"
