"""Symptom: how a case fails, as far as a smaller case must fail in the same way."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec

from ...inputs.history import FOLDER, CheckRequest, is_sound, make_folder
from ...model.layout_run import MISMATCH
from ...model.writing import replace_file

if TYPE_CHECKING:
    from ...numerics.evidence import LayoutRun, Measured, Probed

NUMBERS, NAN, MEMORY, IDENTITY, CRASH = "wrong numbers", "not finite", "memory", "identity", "crash"


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
        too = [name for name in self.own if name != self.first]
        words = f"{self.first} first, {self.kind}" + (f"; by itself too: {', '.join(too)}" if too else "")
        words += "; head 0 is right" if self.spares_head_0 else ""
        return words + (f"; cause: {self.fault}" if self.fault else "")


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


def symptom_of(report: Probed) -> Symptom | None:
    """In which way a report fails; None where it matches."""
    if report.failing is None:
        return None
    run, shown = report.failing
    first = report.diagnoses[0] if report.diagnoses else None
    fault = first.fault if first is not None and first.is_named else None
    named = [one.fault for one in report.diagnoses if one.is_named]
    return replace(_symptom(run, shown, report.case.heads, fault), alike=tuple(dict.fromkeys(named[1:])))


def plain_symptom(runs: Sequence[LayoutRun], heads: int) -> tuple[LayoutRun, Symptom] | None:
    """The first run that fails in its own elements or memory, without second runs or a look inside; and its symptom."""
    for run in runs:
        if run.measured is not None and (not run.measured.comparison.matches or run.memory):
            return run, _symptom(run, run.measured, heads, None)
    return None


def _symptom(run: LayoutRun, measured: Measured, heads: int, fault: str | None) -> Symptom:
    findings = measured.comparison.findings
    if measured.first is None:
        if measured.broken:
            return Symptom(IDENTITY, measured.broken[0].key, fault=fault)
        memory_finding = run.memory[0]
        return Symptom(MEMORY, f"{memory_finding.kind} {memory_finding.tensor}".strip(), fault=fault)
    own = tuple(name for name, finding in findings.items() if finding.status == MISMATCH)
    actual = measured.first.actual
    kind = NUMBERS if actual is not None and math.isfinite(actual) else NAN
    spares = heads > 1 and not any(bool(findings[name].own[:, 0].any()) for name in own)
    return Symptom(kind, measured.first.intermediate, own, tuple(findings), heads, spares, fault)


FILE = FOLDER / "failing.json"


@dataclass(frozen=True)
class KeptCase:
    """A shrunken case, and in which way it fails."""

    request: CheckRequest
    symptom: Symptom


def load() -> list[KeptCase]:
    """The kept cases; none where the file is missing or broken."""
    try:
        targets = msgspec.json.decode(FILE.read_bytes(), type=dict[str, list[KeptCase]])
    except (OSError, RecursionError, msgspec.MsgspecError):
        return []
    return [kept for entries in targets.values() for kept in entries if is_sound(kept.request)]


def save(kept: Sequence[KeptCase]) -> None:
    """Writes the file, grouped by target. A folder that cannot be written is no failure."""
    targets: dict[str, list[dict[str, Any]]] = {}
    for one in kept:
        targets.setdefault(one.request.target, []).append(asdict(one))
    with contextlib.suppress(OSError):
        make_folder()
        replace_file(FILE, json.dumps(targets, indent=2) + "\n")


def of_target(kept: Sequence[KeptCase], request: CheckRequest) -> list[KeptCase]:
    """Those of the target that is asked for, under the same family and reference."""
    words = (request.target, request.family, request.reference)
    return [one for one in kept if (one.request.target, one.request.family, one.request.reference) == words]


def with_another(kept: Sequence[KeptCase], new: KeptCase) -> list[KeptCase]:
    """The kept cases and a new one, which replaces those of its target that fail in the same way."""
    ways = [(one, (one.symptom.kind, one.symptom.first, one.symptom.fault)) for one in of_target(kept, new.request)]
    way = (new.symptom.kind, new.symptom.first, new.symptom.fault)
    same = [one for one, other in ways if other == way]
    return [*(one for one in kept if one not in same), new]
