"""The ordinary run's results with what was recovered beside them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ..cases.case import Case
from ..intermediates import names
from ..judging.compare import promoted
from ..judging.invariants import Invariant
from ..judging.locate import Location, locate
from ..judging.measured import Measured
from ..judging.tally import MISMATCH, Finding


def beside(case: Case, own: Measured, inner: Measured) -> Measured:
    """What a report shows of a run that was looked into.

    What the target exposed stays as it came, number for number. Where it is wrong, and is so in the one-hot problems
    too but inherits it there from parents that the ordinary run does not show, it is called inherited.
    """
    known = {name: _blamed(one, inner.comparison.findings.get(name)) for name, one in own.comparison.findings.items()}
    recovered = {name: one for name, one in inner.comparison.findings.items() if name not in known}
    order = [name for name in names() if name in known or name in recovered]
    findings = {name: known.get(name) or recovered[name] for name in order}
    comparison = replace(
        own.comparison,
        findings=findings,
        absent=tuple(name for name in own.comparison.absent if name not in findings),
        reading={name: most for name, most in inner.comparison.reading.items() if name in recovered},
    )
    sources = {name: (own if name in known else inner).trace.sources[name] for name in order}
    shown = replace(own, trace=replace(own.trace, sources=sources), comparison=promoted(comparison))
    return replace(
        shown, first=_first(case, own, inner, findings), invariants=_either(own.invariants, inner.invariants)
    )


def _first(case: Case, own: Measured, inner: Measured, findings: Mapping[str, Finding]) -> Location | None:
    """The first mismatch, in the run whose it is."""
    name = next((name for name, finding in findings.items() if finding.status == MISMATCH), None)
    if name is None:
        return None
    of = own if name in own.trace.values else inner
    return locate(case, of.x, of.trace, replace(of.comparison, findings={name: findings[name]}))


def _blamed(own: Finding, inner: Finding | None) -> Finding:
    """A finding of the ordinary run, of whose wrong heads those inherit that do so in the one-hot problems."""
    if inner is None or not own.mismatched:
        return own
    inherits = (inner.wrong > 0) & (inner.own == 0)
    left = own.own.masked_fill(inherits, 0)
    return replace(own, own=left, first=own.first if bool(left.any()) else None)


def _either(own: tuple[Invariant, ...], inner: tuple[Invariant, ...]) -> tuple[Invariant, ...]:
    """Each identity once: the one-hot problems' where the run's own results do not show it, or keep it."""
    kept = {(invariant.of, invariant.name): invariant for invariant in own}
    for invariant in inner:
        before = kept.get((invariant.of, invariant.name))
        if before is None or (before.holds and not invariant.holds):
            kept[invariant.of, invariant.name] = invariant
    return tuple(kept.values())
