"""What is wrong in reports, one alert a finding and the worst first: what every form for CI shows."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from msgspec import structs

from ..model.layout_run import INHERITED, MISMATCH, SKIPPED, Error, Identity, Intermediate, Run
from ..model.memory_finding import HUGE, UNDECLARED, VECTOR, WARNING, MemoryFinding, WarningNote
from ..model.report import CauseLine, Diagnosis, Report, TriedEdit
from .notation import (
    cause_in_words,
    counts_in_words,
    element_line,
    errors_of,
    heads_having,
    identities,
    identity_line,
    is_silent,
    residual,
    told_apart,
)
from .source_places import Place, place_of, places_of
from .topic import RULE, Topic, topics


@dataclass(frozen=True)
class Rule:
    """One kind of finding. No id is given to another or taken back: alerts that somebody closed are known by it."""

    id: str
    name: str
    """In CamelCase, for lists of rules."""
    level: str
    """SARIF's: error, warning, note, or none for what is told and no finding."""
    rank: float
    """0 to 100, the worst first."""
    topic: Topic
    """What it means, and what to do."""


def _rules() -> Iterator[Rule]:
    for topic in topics():
        if topic.kind == RULE and topic.name.startswith("GP"):
            name, level, rank = topic.detail.split(", ")
            yield Rule(topic.name, name, level, float(rank), topic)


RULES = tuple(_rules())
_BY_ID = {rule.id: rule for rule in RULES}
WRONG, INHERITS, IDENTITY, CAUSE = (_BY_ID[f"GP{number:03}"] for number in (1, 2, 3, 4))
REFERENCE, TOOL, USAGE, REFUSED = (_BY_ID[f"GP{number:03}"] for number in (23, 24, 25, 30))
_WARNED = (HUGE, VECTOR, UNDECLARED)
OF_WARNING = {kind: _BY_ID[f"GP{number:03}"] for number, kind in enumerate(_WARNED, 40)}
_KINDS = [
    "outside",
    "guard",
    "unwritten",
    "race",
    "barrier",
    "misaligned",
    "changed",
    "shared",
    "dtype",
    "shuffle",
]
OF_MEMORY = {kind: _BY_ID[f"GP{number:03}"] for number, kind in enumerate(_KINDS, 10)}
_FAILURES = {
    "GP020": "Crash DeviceLost NoRoom",
    "GP021": "Timeout",
    "GP022": "TargetFailure RanksFailure Refusal KernelStopped NoKernel",
    "GP023": "ReferenceFailure",
    "GP025": "UsageFailure UntestedVersion InputsFailure",
    "GP026": "Incomplete",
    "GP027": "CompileError",
}
OF_FAILURE = {kind: _BY_ID[known] for known, kinds in _FAILURES.items() for kind in kinds.split()}

SearchResult = Sequence[tuple[Run, Intermediate]]
"""An intermediate, in the runs in which it has a status."""


@dataclass(frozen=True)
class Alert:
    """One finding. The same finding in several layouts is one."""

    rule: Rule
    check: str
    """The target, and the title of its case."""
    what: str
    """What it is about: an intermediate, an identity, a tensor and its kernel."""
    title: str
    """In a few words."""
    sentences: tuple[str, ...]
    places: tuple[Place, ...]
    """Where to look, the best first."""
    ratio: float = float("inf")
    """The worst error as a multiple of what is allowed."""
    is_first: bool = False
    """Whether it is the report's first mismatch."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """Plain values for programs."""
    level: str = ""
    """SARIF's: that of the rule, or lower where it is told as a warning."""
    edit: TriedEdit | None = None
    """An edit with which everything matches, or that undoes this cause; None where none is known."""

    @property
    def fingerprint(self) -> str:
        """The same for the same finding of the same check, wherever its line has moved and however large it is."""
        lower = () if self.level == self.rule.level else (self.level,)
        words = "\0".join((self.rule.id, self.check, self.what, *lower))
        return hashlib.sha256(words.encode(errors="replace")).hexdigest()


def alerts_of(reports: Iterable[Report]) -> list[Alert]:
    """Every finding of the reports, the worst first.

    That is: by the rank of their rule, then what comes first in dataflow order, then by ratio.
    """
    found = [alert for report in told_apart(reports) for alert in alerts_in(report)]
    return sorted(found, key=lambda alert: (-alert.rule.rank, not alert.is_first, -alert.ratio))


def alerts_in(report: Report) -> Iterator[Alert]:
    """Those of one report: errors as they are found, then warnings."""
    yield from _ReportAlerts(errors_of(report)).errors()
    yield from _ReportAlerts(report).warnings()


class _ReportAlerts:
    """The alerts of one report."""

    def __init__(self, report: Report) -> None:
        self._report = report

    def errors(self) -> Iterator[Alert]:
        report = self._report
        if error := report.own_error:
            yield self._failed(error)
        yield from map(self._cause, report.causes)
        for name, found in report.by_status(MISMATCH):
            yield self._wrong(name, found)
        for name, found in report.by_status(INHERITED):
            yield self._inherited(name, found)
        yield from self._broken()
        yield from map(self._stray, report.memory)
        yield from self._of_runs()
        if is_silent(report):
            words = "The check is a mismatch"
            yield self._alert(WRONG, "check", [f"{words}; its report says no more."], title=words)

    def warnings(self) -> Iterator[Alert]:
        """What a report tells and does not count, at the lines that were seen in its layouts."""
        for warned in self._report.warnings:
            layouts, about = list(warned.layouts), warned.about
            rule = OF_WARNING.get(warned.kind) or OF_MEMORY[warned.kind]
            memory = [one for one in self._report.memory if one.layout in ("", *layouts)]
            words = [f"{warned.words}.", f"{_layouts(layouts)}." if layouts else ""]
            yield self._alert(
                rule, about, words, {"kind": warned.kind, "layouts": layouts}, [warned, *memory],
                title=f"{rule.topic.title}: {about}", level=WARNING,
            )  # fmt: skip

    def _alert(
        self,
        rule: Rule,
        what: str,
        sentences: Sequence[str],
        details: Mapping[str, Any] | None = None,
        seen: Sequence[CauseLine | MemoryFinding | Error | WarningNote] = (),
        **more: Any,
    ) -> Alert:
        """With what every alert of a report says; a place without a file is none.

        Args:
            seen: what names places before those of the report.
            more: other fields of an Alert.
        """
        report = self._report
        again = f"Again: {report.reproduce}" if report.reproduce else ""
        places = (*map(place_of, seen), *more.pop("places", places_of(report)))
        known = {
            "title": rule.topic.title,
            "level": rule.level,
            "sentences": tuple(filter(None, (*sentences, again))),
            "places": tuple(dict.fromkeys(place for place in places if place.file)),
            "details": {"check": report.name, **(details or {})},
        }
        return Alert(rule=rule, check=report.name, what=what, **(known | more))

    def _cause(self, cause: Diagnosis) -> Alert:
        """At its own lines."""
        edit = cause.edit if cause.is_certain else None
        sentences = [cause_in_words(cause), *(f"{sentence}." for sentence in cause.evidence)]
        extent = {"seen": cause.seen} if cause.seen else {"explained": cause.explained}
        return self._alert(
            CAUSE, cause.fault, [*sentences, edit.diff if edit else ""], {"fault": cause.fault, **extent}, cause.where,
            title=f"{CAUSE.topic.title}: {cause.fault}", edit=edit,
        )  # fmt: skip

    def _stray(self, finding: MemoryFinding) -> Alert:
        rule, line = OF_MEMORY[finding.kind], f"The line: {finding.code}" if finding.code else ""
        about = " in ".join(filter(None, (finding.tensor, finding.kernel)))
        details = {"kind": finding.kind, "tensor": finding.tensor, "kernel": finding.kernel}
        return self._alert(
            rule, f"{about}: {finding.code}", [finding.sentence, line], details, [finding],
            title=f"{rule.topic.title}: {about}" if about else rule.topic.title,
        )  # fmt: skip

    def _wrong(self, name: str, found: SearchResult) -> Alert:
        report = self._report
        sentences = [f"{name} is wrong by itself: its own inputs do not explain it."]
        sentences.append(_extent(found, MISMATCH))
        if report.is_right_when_contiguous:
            why = "the arithmetic is right, an address (a stride) is not"
            sentences.append(f"Right when contiguous: {why}.")
        sentences += map(cause_in_words, report.causes or report.diagnoses[:1])
        firsts = [run.first_mismatch for run, _ in found if run.first_mismatch]
        sentences += [element_line(first) for first in firsts if first.title == name][:1]
        is_first = report.first_mismatch is not None and report.first_mismatch.title == name
        title = f"{name} is wrong by itself"
        alert = self._of_intermediate(WRONG, name, sentences, found, MISMATCH, title)
        return replace(alert, is_first=is_first)

    def _inherited(self, name: str, found: SearchResult) -> Alert:
        sentences = [f"{name} only inherits: it is wrong, but right given its wrong inputs."]
        sentences.append(_extent(found, INHERITED))
        causes = [f"{cause.fault} ({cause.summary})" for cause in self._report.causes]
        sentences += [f"It comes from {' and '.join(causes)}."] if causes else []
        title = f"{name} only inherits its error"
        return self._of_intermediate(INHERITS, name, sentences, found, INHERITED, title)

    def _of_intermediate(
        self, rule: Rule, name: str, sentences: Sequence[str], found: SearchResult, status: str, title: str
    ) -> Alert:  # fmt: skip
        run, worst = _worst(found)
        head, times = next(iter(worst.having(status)), None), worst.max_budget_ratio
        details: dict[str, Any] = {
            "intermediate": worst.name, "layout": run.layout, "layouts": [each.layout for each, _ in found],
            "batch": head and head.batch, "head": head and head.head, "ratio": times and times.plain,
            "mismatched": worst.mismatched, "total": worst.total,
        }  # fmt: skip
        details |= {"kernel": worst.kernel} if worst.kernel else {}
        places = places_of(self._report, worst.name, inherits=status == INHERITED)
        ratio = worst.ratio
        return self._alert(
            rule, name, sentences, details, title=title, ratio=ratio, places=places
        )

    def _broken(self) -> Iterator[Alert]:
        """One alert an identity, with the layout in which it is furthest off."""
        found: dict[str, list[tuple[str, Identity]]] = {}
        for run in self._report.runs:
            for key, identity in identities(run).items():
                if not identity.holds:
                    found.setdefault(key, []).append((run.layout, identity))
        for key, broken in found.items():
            layout, identity = max(broken, key=lambda pair: pair[1].ratio)
            layouts = [one for one, _ in broken]
            sentences = [f"{residual(identity)} in {layout}."]
            sentences += [f"{_layouts(layouts)}."] if len(layouts) > 1 else []
            sentences += [] if self._report.first_mismatch else [identity_line(identity)]
            numbers = {"residual": identity.residual, "budget": identity.budget}
            plain = {name: None if one is None else one.plain for name, one in numbers.items()}
            details = {"identity": key, "layout": layout, "layouts": layouts, **plain}
            title, ratio = f"{identity.name} is broken", identity.ratio
            yield self._alert(IDENTITY, key, sentences, details, title=title, ratio=ratio)

    def _of_runs(self) -> Iterator[Alert]:
        """Layouts that came to an error, and those that the target refused."""
        for run in self._report.runs:
            layout = run.layout
            if told := run.told_error:
                own = run.error if isinstance(run.error, Error) else Error(kind="", message="")
                message = f"{layout}: {told[1]}"
                yield self._failed(structs.replace(own, kind=told[0], message=message), layout)
            elif run.verdict == SKIPPED:
                words = [f"Layout {layout} was skipped: {run.skipped}"]
                title = f"Layout {layout} was refused"
                yield self._alert(REFUSED, layout, words, {"layout": layout}, title=title)

    def _failed(self, error: Error, what: str = "check") -> Alert:
        rule = OF_FAILURE.get(error.kind, TOOL)
        # A wrong command is no fault of any file.
        places = () if rule in (USAGE, TOOL, REFERENCE) else places_of(self._report)
        words, details = [error.message, error.way_out], {"kind": error.kind}
        return self._alert(rule, what, words, details, [error], places=places)


def _worst(found: SearchResult) -> tuple[Run, Intermediate]:
    return max(found, key=lambda pair: pair[1].ratio)


def _extent(found: SearchResult, status: str) -> str:
    """In which layouts and heads, and how much."""
    run, worst = _worst(found)
    layouts = _layouts([each.layout for each, _ in found])
    return f"{layouts}: {heads_having(worst, status)}; {counts_in_words(worst)} in {run.layout}."


def _layouts(layouts: Sequence[str]) -> str:
    unique = list(dict.fromkeys(layouts))
    shown = "; ".join(unique[:8]) + (f" and {len(unique) - 8} more" if len(unique) > 8 else "")
    return f"Layout{'s' * (len(unique) > 1)} {shown}"
