"""Report: what one check found, of which every form is made. The names are those of the JSON."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Annotated, Any, Final, Literal, NamedTuple

from msgspec import Meta, Struct, field

from .case import Case
from .failures import Failure
from .layout_run import (
    FAILED,
    MATCH,
    MISMATCH,
    CloseUp,
    Counts,
    Difference,
    Element,
    Error,
    Intermediate,
    Run,
)
from .memory_finding import WARNING, MemoryFinding, WarningNote
from .number import some

# The share of wrong elements that a hypothesis must reproduce to be named as the cause, or as consistent with them.
NAMED, CONSISTENT = 0.9, 0.5


class CauseLine(Struct, frozen=True):
    file: str
    line: int
    code: str
    column: int | None = None
    length: int = 0
    kernel: str = ""
    note: str = ""
    around: tuple[str, str] = ("", "")
    """Without the indent of all three lines."""
    margin: Annotated[int, Meta(ge=0, le=100_000)] = 0
    function: str = ""
    instead: str = ""

    @property
    def place(self) -> str:
        function = self.function or self.kernel
        return f"{self.line} in {function}" if function else str(self.line)


class TriedEdit(Struct, frozen=True, kw_only=True):
    """An edit of the source that was run; or that none helps."""

    matches: bool
    words: str
    file: str = ""
    diff: str = ""
    right: tuple[str, ...] = ()
    """What is unlike the check in other cases that match too."""
    doubts: tuple[str, ...] = ()  # wrong with it and without it
    not_run: tuple[str, ...] = ()
    """What could tell it from another edit: a line, a side of a branch."""
    beyond: tuple[str, ...] = ()
    """What else of the edited functions no case comes to."""
    others: tuple[str, ...] = ()
    tried: int = 0
    seconds: float = 0.0

    @property
    def is_certain(self) -> bool:
        return self.matches and not (self.doubts or self.not_run)

    @property
    def reservations(self) -> tuple[str, ...]:
        found = (("not run", self.not_run), ("wrong with it and without it", self.doubts))
        return tuple(f"{words}: {some(cases)}" for words, cases in found if cases)

    @property
    def limits(self) -> tuple[str, ...]:
        return (f"no case that it takes comes to {some(self.beyond)}",) if self.beyond else ()


_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+\d+(?:,\d+)? @@")


class Replacement(NamedTuple):
    line: int
    """From 1; where none goes, the one before which the new ones stand."""
    old: list[str]
    new: list[str]


def replacements_of(diff: str) -> Iterator[Replacement]:
    """Of a unified diff of one file, in order."""
    at, current = 0, Replacement(0, [], [])
    for line in diff.split("\n")[2:]:
        head = _HUNK.match(line)
        if line[:1] in ("+", "-") and head is None:
            (current.new if line[0] == "+" else current.old).append(line[1:])
            at += line[0] == "-"
            continue
        if current.old or current.new:
            yield current
        # A hunk that takes no line stands behind the one that it names.
        at = int(head[1]) + (head[2] == "0") if head else at + 1
        current = Replacement(at, [], [])
    if current.old or current.new:
        yield current


def patched(text: str, diff: str) -> str:
    """Raises ValueError: a line that goes is another one."""
    lines = text.split("\n")
    for change in reversed(list(replacements_of(diff))):
        first, last = change.line - 1, change.line - 1 + len(change.old)
        if [line.rstrip("\r") for line in lines[first:last]] != change.old:
            raise ValueError(f"line {change.line} has changed")
        end = "\r" if first < len(lines) and lines[first].endswith("\r") else ""
        lines[first:last] = [line + end for line in change.new]
    return "\n".join(lines)


class Diagnosis(Struct, frozen=True, rename={"fault_class": "class"}):
    fault: str
    fault_class: str
    summary: str
    explained: float
    """The share of wrong elements that it reproduces, less what it spoils; of what was seen, how sure."""
    evidence: tuple[str, ...] = ()
    where: tuple[CauseLine, ...] = ()
    fix: str = ""
    also: bool = False
    edit: TriedEdit | None = None
    seen: str = ""
    says_wrong: tuple[str, ...] = ()
    """One or more of these are wrong by themselves."""
    says_right: tuple[str, ...] = ()
    layouts: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        return self.fault.partition("/")[0]

    @property
    def extent(self) -> str:
        return self.seen or f"explains {self.explained:.0%} of what is wrong"

    @property
    def is_named(self) -> bool:
        return self.explained >= NAMED

    @property
    def is_certain(self) -> bool:
        return self.edit is not None and self.edit.is_certain


def causes_among(diagnoses: Sequence[Diagnosis]) -> list[Diagnosis]:
    if not diagnoses or not diagnoses[0].is_named:
        return []
    first, *others = diagnoses
    return [first, *(other for other in others if other.also and other.is_named)]


class CompileError(Struct, frozen=True, kw_only=True):
    """A line that Triton's interpreter runs and its compiler does not."""

    kernel: str
    function: str = ""
    file: str
    line: int
    code: str = ""
    words: str
    way_out: str = ""
    arch: str = ""

    @property
    def sentence(self) -> str:
        compiles = f"compile for {self.arch}" if self.arch else "compile"
        return f"{self.kernel} does not {compiles}: {PurePath(self.file).name}:{self.line}: {self.words}"


SCHEMA: Final = "gradprobe.report/2"


class Source(Struct, frozen=True, kw_only=True):
    name: str = ""
    file: str = ""
    line: int | None = None
    sha256: str = ""


class Origin(Struct, frozen=True, kw_only=True):
    """Where a report was made: what paths are told by."""

    folder: str
    root: str
    home: str = ""
    version: str = ""


class CheckedTarget(Struct, frozen=True, kw_only=True):
    """What really ran; of one that was not found, the name alone."""

    name: str = ""
    family: str = ""
    backend: str = ""
    function: str = ""
    file: str = ""
    line: int | None = None
    sha256: str = ""
    shadows: tuple[str, ...] = ()
    kernels: tuple[Source, ...] = ()
    idle: tuple[str, ...] = ()
    reference: str = ""


class SurveySummary(Struct, frozen=True, kw_only=True):
    layouts: int = 0


class SecondCheck(Struct, frozen=True, kw_only=True):
    name: str
    report: Report
    differences: tuple[Difference, ...] = ()

    @property
    def is_saved(self) -> bool:
        return self.name.endswith(".json")


class AuditSummary(Struct, frozen=True, kw_only=True):
    wrong: tuple[str, ...] = ()
    taken: tuple[str, ...] = ()


class Report(Struct, frozen=True, kw_only=True):
    """What a check came to, also a failed one."""

    schema: Literal["gradprobe.report/2"] = SCHEMA
    origin: Origin | None = None
    title: str = ""
    number: int = 0
    chosen: str = ""
    verdict: str
    severity: str | None = None
    target: CheckedTarget = CheckedTarget()
    environment: Mapping[str, str] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    """By file, the hash of what the check was made of."""
    case: Case | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    error: Error | None = None
    runs: tuple[Run, ...] = ()
    first_mismatch: Element | None = None
    diagnoses: tuple[Diagnosis, ...] = ()
    known: tuple[str, ...] = ()
    sought: bool = True
    compile_errors: tuple[CompileError, ...] = ()
    coarser: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    target_warnings: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()
    beyond: str = ""
    not_checked: tuple[str, ...] = ()
    undeclared: tuple[str, ...] = ()
    """Wrong in a second case that nothing says the target takes."""
    compared: Counts = Counts()
    warnings: tuple[WarningNote, ...] = ()
    reproduce: str = ""
    seconds: Mapping[str, float] = field(default_factory=dict)
    close_ups: tuple[CloseUp, ...] = ()
    close_up: CloseUp | None = None
    strides: SurveySummary | None = None
    against: SecondCheck | None = None
    audit: AuditSummary | None = None

    @property
    def is_warning(self) -> bool:
        return self.severity == WARNING

    @property
    def name(self) -> str:
        name = self.target.name or "gradprobe"
        return f"{name} ({self.title})" if self.title else name

    @property
    def measured(self) -> list[Run]:
        return [run for run in self.runs if run.is_judged]

    @property
    def failing(self) -> Run | None:
        """The first run with a wrong element, of a survey the simplest; else the first that fails otherwise."""
        wrong = [run for run in self.runs if run.is_wrong]
        wrong.sort(key=lambda run: (not run.has_wrong_elements, not run.is_judged, run.effort))
        return wrong[0] if wrong else None

    @property
    def shown(self) -> Run:
        failing = self.failing
        return failing if failing is not None and failing.is_judged else self.measured[0]

    @property
    def causes(self) -> list[Diagnosis]:
        return causes_among(self.diagnoses)

    @property
    def own_error(self) -> Error | None:
        return None if any(run.told_error for run in self.runs) else self.error

    @property
    def is_right_when_contiguous(self) -> bool:
        verdicts = {run.layout: run.verdict for run in self.runs if run.is_plain}
        return verdicts.get("contiguous") == MATCH and MISMATCH in verdicts.values()

    @property
    def memory(self) -> tuple[MemoryFinding, ...]:
        found: dict[object, MemoryFinding] = {}
        for run in self.runs:
            for one in run.memory:
                found.setdefault((one.kind, one.tensor, one.file, one.line), one)
        return tuple(found.values())

    def by_status(self, status: str) -> Iterator[tuple[str, list[tuple[Run, Intermediate]]]]:
        """By title each intermediate that has a status somewhere, with those runs."""
        found: dict[str, list[tuple[Run, Intermediate]]] = {}
        for run in self.runs:
            for intermediate in run.intermediates:
                # Also of one that has it nowhere: the order is that of the dataflow.
                those = found.setdefault(intermediate.title, [])
                those += [(run, intermediate)] if intermediate.status == status else []
        yield from ((name, those) for name, those in found.items() if those)


def passing_edit(report: Report) -> TriedEdit | None:
    edits = (one.edit for one in report.diagnoses)
    return next((edit for edit in edits if edit is not None and edit.matches), None)


def error_of(failure: Failure) -> Error:
    kind, words, way_out = type(failure).__name__, str(failure), failure.way_out
    return Error(kind=kind, message=words, details=failure.details, way_out=way_out)


def failed_report(failure: Failure, reproduce: str, target: str | None = None) -> Report:
    checked = CheckedTarget(name=target or "")
    return Report(verdict=FAILED, target=checked, error=error_of(failure), reproduce=reproduce)
