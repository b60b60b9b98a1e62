"""Mismatch: whether what differs is right in other units, or by an arithmetic that the target proves to have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..numerics.coarser import Coarser, explained
from ..numerics.compare import Comparison, Evaluate
from ..numerics.conventions import in_other_conventions
from ..numerics.evenness import HeadScatter
from ..numerics.evidence import Measured
from ..numerics.locate import locate
from ..numerics.operands import Operand, OperandOfEach, rounded_operand
from ..numerics.roundings import Roundings, rounded_besides
from .experiment import Measurement

Proved = tuple[Coarser | Operand | OperandOfEach | Roundings, ...]


def in_its_units(of: Measurement, found: Measured) -> Measured:
    """What was measured, read by the conventions in which the target exports; beside it where these count as wrong."""
    read, comparison, conventions = in_other_conventions(of.case, of.x(), found.trace, found.comparison, of.compared)
    if not conventions:
        return found
    meant = Measured(found.problem, read, comparison, None, of.identities(read, comparison))
    if of.case.strict:
        first = None if comparison.matches else locate(of.x(), read, comparison)
        return replace(found, conventions=conventions, as_read=replace(meant, first=first))
    return replace(meant, coarser=found.coarser, conventions=conventions, unread=found.trace)


def by_coarser(of: Measurement, found: Measured, heads: Mapping[str, Sequence[HeadScatter]]) -> Measured:
    """What was measured, by an arithmetic that the target proves to have, which goes first of those that are told."""
    lenient, proved = _proved(of, found, heads)
    found = replace(found, coarser=(*proved, *found.coarser))
    if not proved or of.case.strict:
        return found
    return replace(found, comparison=lenient, invariants=of.identities(found.trace, lenient))


def _proved(of: Measurement, found: Measured, heads: Mapping[str, Sequence[HeadScatter]]) -> tuple[Comparison, Proved]:
    """The comparison by such an arithmetic, and that; what proves most exactly goes first."""
    case, x, trace, plain = of.case, of.x(), found.trace, found.comparison

    def by_evaluation(evaluate: Evaluate) -> Comparison:
        return of.compared(trace, by=evaluate)

    by_operand = rounded_operand(case, x, trace, plain, by_evaluation)
    if by_operand is not None:
        return by_operand[0], (by_operand[1],)
    lenient, sums = explained(case, x, trace, plain)
    if lenient.matches:
        return lenient, sums
    besides = rounded_besides(case, x, trace, plain, heads, lambda held: of.compared(trace, held=held))
    return (besides[0], (besides[1],)) if besides else (lenient, sums)
