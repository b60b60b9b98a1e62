"""Symptom: how a case fails, as far as a smaller case must fail in the same way."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ...model.layout_run import MISMATCH

if TYPE_CHECKING:
    from ...numerics.evidence import LayoutRun, MeasuredRun, ProbeResult

NUMBERS, NAN, MEMORY, IDENTITY, CRASH = (
    "wrong numbers",
    "not finite",
    "memory",
    "identity",
    "crash",
)


@dataclass(frozen=True)
class Symptom:
    """In which way a case fails."""

    kind: str
    """NUMBERS, NAN, MEMORY, IDENTITY or CRASH."""
    first: str
    """The first wrong intermediate; the tensor of a memory finding, with its kind; the key of an identity; "crash"."""
    own: tuple[str, ...] = ()
    """Every intermediate that is wrong by itself, in dataflow order."""
    exposed: tuple[str, ...] = ()
    """Every intermediate that was compared."""
    heads: int = 1
    spares_head_0: bool = False
    """Whether head 0 is right in all of `own`, where there are several heads."""
    fault: str | None = None
    """What a diagnosis names as the cause; None where none does."""
    alike: tuple[str, ...] = ()
    """The other causes that are named: a small case cannot tell some of them apart."""

    def is_like(self, other: Symptom) -> bool:
        """Whether this smaller case fails like a larger one, causes aside: `is_named_like` compares those.

        The same intermediates are wrong by themselves, of those that the smaller case still has. Where head 0 was
        right it is still, as long as there are other heads.
        """
        left = tuple(name for name in other.own if name in self.exposed)
        spared = self.spares_head_0 == other.spares_head_0 or 1 in (self.heads, other.heads)
        return (self.kind, self.first, self.own) == (other.kind, other.first, left) and spared

    def is_named_like(self, other: Symptom) -> bool:
        """Whether the cause of the other, if it has one, is among the causes named here."""
        return other.fault is None or other.fault in (self.fault, *self.alike)

    @property
    def sentence(self) -> str:
        """ "dP first, wrong numbers; by itself too: dV"."""
        if self.kind == CRASH:
            return "the process that runs the target ends"
        if self.kind in (MEMORY, IDENTITY):
            return f"{self.kind}: {self.first}"
        words = f"{self.first} first, {self.kind}"
        if too := [name for name in self.own if name != self.first]:
            words += f"; by itself too: {', '.join(too)}"
        if self.spares_head_0:
            words += "; head 0 is right"
        return f"{words}; cause: {self.fault}" if self.fault else words


CRASHED = Symptom(CRASH, CRASH)


@dataclass(frozen=True)
class TriedCase:
    """What a try of a case came to."""

    symptom: Symptom | None
    """None where it matches or could not be run."""
    why_not: str = ""
    """Why it could not be run, in the words of what was raised; "" where it was run."""
    is_usage: bool = False
    """Whether the words of the case were refused before anything ran."""

    @property
    def sentence(self) -> str:
        """What follows "with 1 head": "it matches"."""
        if self.symptom is not None:
            return f"it fails in another way: {self.symptom.sentence}"
        return f"it does not run: {self.why_not}" if self.why_not else "it matches"


def symptom_of(report: ProbeResult) -> Symptom | None:
    """In which way a report fails; None where it matches."""
    if report.failing is None:
        return None
    run, shown = report.failing
    named = [diagnosis.fault for diagnosis in report.diagnoses if diagnosis.is_named]
    fault = (
        report.diagnoses[0].fault if report.diagnoses and report.diagnoses[0].is_named else None
    )
    alike = tuple(dict.fromkeys(named[1:]))
    return replace(_symptom(run, shown, report.case.heads), fault=fault, alike=alike)


def plain_symptom(runs: Sequence[LayoutRun], heads: int) -> tuple[LayoutRun, Symptom] | None:
    """The first run that fails in its own elements or memory, without second runs or a look inside; and its symptom."""
    for run in runs:
        if run.measured is not None and (not run.measured.comparison.matches or run.memory):
            return run, _symptom(run, run.measured, heads)
    return None


def _symptom(run: LayoutRun, measured: MeasuredRun, heads: int) -> Symptom:
    findings = measured.comparison.findings
    if measured.first is None:
        if measured.broken:
            return Symptom(IDENTITY, measured.broken[0].key)
        stray = run.memory[0]
        return Symptom(MEMORY, f"{stray.kind} {stray.tensor}".strip())
    own = tuple(name for name, finding in findings.items() if finding.status == MISMATCH)
    actual = measured.first.actual
    kind = NUMBERS if actual is not None and math.isfinite(actual) else NAN
    spares = heads > 1 and not any(bool(findings[name].own[:, 0].any()) for name in own)
    return Symptom(kind, measured.first.intermediate, own, tuple(findings), heads, spares)
