"""A reference as a target that a check can run: audited, and called in its own way behind the usual names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..model.case import Case
from ..model.failures import Failure, ReferenceFailure
from ..model.intermediates import lookup
from ..model.layout_run import Element
from ..numerics.compare import compare
from ..numerics.declared_precision import precision_of
from ..numerics.locate import locate
from ..reference import Attention
from ..runtime.trace import Trace
from ..targets.find import Target, find_target
from .audit import Audit, audit, diagnoses_of, known_of
from .calling import ReferenceCall

_WAY_OUT = "a reference is checked before it is used: correct it, or leave out --reference"


def audited_target(subject: str | Callable[..., Any], family: str | None) -> Target:
    """The reference that a word or a function is, once it proves right on small cases.

    One that takes none of these is left to the check, which judges it on its own values.

    Raises:
        ReferenceFailure: it is wrong, with its first wrong formula and its line.
        UsageFailure, TargetFailure: from `find_target`.
    """
    try:
        made = audit(subject, family, seeds=1)
    except Failure:
        return find_target(subject, family)
    if not made.is_right:
        way_out = f"gradprobe audit {made.target.name} shows it; {_WAY_OUT}"
        raise ReferenceFailure(f"the verdict is about the reference: {_describe(made)}", way_out)
    return ReferenceCall(made.target, made.attempt.how).target()


def _describe(made: Audit) -> str:
    name, found = made.target.name, diagnoses_of(made)
    if found:
        where = found[0].where[0] if found[0].where else None
        place = f" ({Path(where.file).name}:{where.line}: {where.code})" if where is not None else ""
        _, is_formula, due = found[0].evidence[0].partition("due: ")
        return f"{name}{f' departs from {due}' if is_formula else ''}: {found[0].summary}{place}"
    first = made.attempt.measured.first
    departs = f"{name} departs from {departure(made.attempt.case, first)}" if first is not None else name
    return "; ".join([departs, *known_of(made)])


# Of what IEEE float32 may err by, what the reference of such a kernel may. Only float64 is better, by 29 bits. This
# lies halfway: a float32 reference, whose independent errors average out in long sums, stands clearly beyond it, and a
# float64 one clearly within.
SHARE_OF_FLOAT32 = 2.0**-14


def refuse_other_formulas(reference: Target, case: Case, x: Attention, trace: Trace, dots: str) -> None:
    """Refuses a user's own reference that departs from the formulas, or is not precise enough to judge a kernel.

    It may err by what IEEE float32 arithmetic may: a reference in float32 is right. Beside a kernel in that very
    arithmetic it must be better by SHARE_OF_FLOAT32, or its errors would be laid on the kernel.

    Raises:
        ReferenceFailure: an intermediate departs from its formula, or is no more precise than the kernel.
    """
    comparison = compare(case, x, trace, precision_of("float32", "ieee"))
    first = locate(x, trace, comparison)
    if first is not None:
        raise ReferenceFailure(
            f"the verdict is about the reference: {reference.name} departs from {departure(case, first)}", _WAY_OUT
        )
    worst = max(comparison.findings.values(), key=lambda finding: finding.max_ratio)
    if not precision_of(case.dtype, dots).matrix and worst.max_ratio > SHARE_OF_FLOAT32:
        raise ReferenceFailure(
            f"the verdict is about the reference: {worst.name} of {reference.name} errs by {worst.max_ratio:.1g} of "
            f"what float32 may err by, and beside a kernel in float32 it may by {SHARE_OF_FLOAT32:.1g}",
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
