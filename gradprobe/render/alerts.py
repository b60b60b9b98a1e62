"""What is wrong in reports, one alert a finding and the worst first: what SARIF and annotations show."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from msgspec import structs

from ..model.layout_run import INHERITED, MISMATCH, SKIPPED, Error, Identity, Intermediate, Run
from ..model.memory_finding import WARNING, MemoryFinding
from ..model.report import Diagnosis, Report, TriedEdit
from . import ci_rules as rules
from .ci_rules import Rule
from .notation import (
    cause_in_words,
    counts_in_words,
    element_line,
    errors_of,
    heads_in_words,
    identities,
    identity_line,
    is_silent,
    residual,
    told_apart,
)
from .source_places import Place, place_of, places_of

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
    found = [
        alert
        for report in told_apart(reports)
        for alert in (*_errors(errors_of(report)), *_warnings(report))
    ]
    return sorted(found, key=lambda alert: (-alert.rule.rank, not alert.is_first, -alert.ratio))


def _errors(report: Report) -> Iterator[Alert]:
    if error := report.own_error:
        yield _failed(report, error)
    yield from (_cause(report, cause) for cause in report.causes)
    for name, found in report.by_status(MISMATCH):
        yield _wrong(report, name, found)
    for name, found in report.by_status(INHERITED):
        yield _inherited(report, name, found)
    yield from _broken(report)
    yield from (_of_memory(report, finding) for finding in report.memory)
    yield from _of_runs(report)
    if is_silent(report):
        sentences = ["The check is a mismatch; its report says no more."]
        yield _alert(
            report,
            rules.WRONG,
            "check",
            "The check is a mismatch",
            sentences,
            places_of(report),
            {},
        )


def _warnings(report: Report) -> Iterator[Alert]:
    """What a report tells and does not count, at the lines that were seen in its layouts."""
    for warned in report.warnings:
        rule = rules.OF_WARNING.get(warned.kind) or rules.OF_MEMORY[warned.kind]
        about, layouts = warned.about, list(warned.layouts)
        seen = [
            place_of(warned),
            *(place_of(one) for one in report.memory if one.layout in ("", *layouts)),
        ]
        sentences = [f"{warned.words}.", f"{_layouts(layouts)}." if layouts else ""]
        title, details = (
            rule.topic.title + (f": {about}" if about else ""),
            {"kind": warned.kind, "layouts": layouts},
        )
        alert = _alert(
            report, rule, about, title, sentences, (*seen, *places_of(report)), details
        )
        yield replace(alert, level=WARNING)


def _alert(
    report: Report,
    rule: Rule,
    what: str,
    title: str,
    sentences: Sequence[str],
    places: Iterable[Place],
    details: Mapping[str, Any],
    worst: float = float("inf"),
) -> Alert:
    """With what every alert of a report says; a place without a file is none."""
    told = (
        *filter(None, sentences),
        *([f"Again: {report.reproduce}"] if report.reproduce else []),
    )
    places = tuple(dict.fromkeys(place for place in places if place.file))
    first = report.first_mismatch
    is_first = rule is rules.WRONG and first is not None and what == first.title
    details = {"check": report.name, **details}
    return Alert(
        rule, report.name, what, title, told, places, worst, is_first, details, rule.level
    )


def _cause(report: Report, cause: Diagnosis) -> Alert:
    """One of the causes, at its own lines."""
    sentences = [cause_in_words(cause), *(f"{sentence}." for sentence in cause.evidence)]
    title, places = (
        f"{rules.CAUSE.topic.title}: {cause.fault}",
        (*map(place_of, cause.where), *places_of(report)),
    )
    details = {
        "fault": cause.fault,
        **({"seen": cause.seen} if cause.seen else {"explained": cause.explained}),
    }
    edit = cause.edit if cause.is_certain else None
    sentences += [edit.diff] if edit else []
    return replace(
        _alert(report, rules.CAUSE, cause.fault, title, sentences, places, details), edit=edit
    )


def _wrong(report: Report, name: str, found: SearchResult) -> Alert:
    firsts = (run.first_mismatch for run, _ in found)
    first = next((one for one in firsts if one is not None and one.title == name), None)
    sentences = [
        f"{name} is wrong by itself: its own inputs do not explain it.",
        _extent(found, MISMATCH),
    ]
    if report.is_right_when_contiguous:
        sentences.append(
            "Right when contiguous: the arithmetic is right, an address (a stride) is not."
        )
    sentences += [
        cause_in_words(diagnosis) for diagnosis in report.causes or report.diagnoses[:1]
    ]
    sentences += [element_line(first)] if first else []
    title, places, details = (
        f"{name} is wrong by itself",
        places_of(report, found[0][1].name),
        _details(found, MISMATCH),
    )
    return _alert(
        report, rules.WRONG, name, title, sentences, places, details, _worst(found)[1].ratio
    )


def _inherited(report: Report, name: str, found: SearchResult) -> Alert:
    sentences = [
        f"{name} only inherits: it is wrong, but right given its wrong inputs.",
        _extent(found, INHERITED),
    ]
    causes = " and ".join(f"{cause.fault} ({cause.summary})" for cause in report.causes)
    sentences += [f"It comes from {causes}."] if causes else []
    title, places = (
        f"{name} only inherits its error",
        places_of(report, found[0][1].name, inherits=True),
    )
    details, worst = _details(found, INHERITED), _worst(found)[1].ratio
    return _alert(report, rules.INHERITED, name, title, sentences, places, details, worst)


def _worst(found: SearchResult) -> tuple[Run, Intermediate]:
    return max(found, key=lambda pair: pair[1].ratio)


def _extent(found: SearchResult, status: str) -> str:
    """In which layouts and heads, and how much."""
    run, intermediate = _worst(found)
    layouts = _layouts([each.layout for each, _ in found])
    return f"{layouts}: {heads_in_words(intermediate, status)}; {counts_in_words(intermediate)} in {run.layout}."


def _details(found: SearchResult, status: str) -> dict[str, Any]:
    run, intermediate = _worst(found)
    head, worst = next(iter(intermediate.having(status)), None), intermediate.max_budget_ratio
    layouts = [each.layout for each, _ in found]
    where: dict[str, Any] = {
        "intermediate": intermediate.name,
        "layout": run.layout,
        "layouts": layouts,
    }
    where |= {"kernel": intermediate.kernel} if intermediate.kernel else {}
    where |= {"batch": head.batch if head else None, "head": head.head if head else None}
    return where | {
        "ratio": worst and worst.plain,
        "mismatched": intermediate.mismatched,
        "total": intermediate.total,
    }


def _broken(report: Report) -> Iterator[Alert]:
    """One alert an identity, with the layout in which it is furthest off."""
    found: dict[str, list[tuple[str, Identity]]] = {}
    for run in report.runs:
        for key, identity in identities(run).items():
            if not identity.holds:
                found.setdefault(key, []).append((run.layout, identity))
    for key, broken in found.items():
        layout, identity = max(broken, key=lambda pair: pair[1].ratio)
        layouts = [one[0] for one in broken]
        sentences = [
            f"{residual(identity)} in {layout}.",
            f"{_layouts(layouts)}." if len(layouts) > 1 else "",
        ]
        sentences += [] if report.first_mismatch else [identity_line(identity)]
        left, budget = (
            None if one is None else one.plain for one in (identity.residual, identity.budget)
        )
        details = {
            "identity": key,
            "layout": layout,
            "layouts": layouts,
            "residual": left,
            "budget": budget,
        }
        title, places = f"{identity.name} is broken", places_of(report)
        yield _alert(
            report, rules.IDENTITY, key, title, sentences, places, details, identity.ratio
        )


def _of_memory(report: Report, finding: MemoryFinding) -> Alert:
    rule, about = (
        rules.OF_MEMORY[finding.kind],
        " in ".join(filter(None, (finding.tensor, finding.kernel))),
    )
    what, title = f"{about}: {finding.code}", f"{rule.topic.title}: {about}"
    sentences = [finding.sentence, f"The line: {finding.code}" if finding.code else ""]
    details = {"kind": finding.kind, "tensor": finding.tensor, "kernel": finding.kernel}
    return _alert(
        report, rule, what, title, sentences, (place_of(finding), *places_of(report)), details
    )


def _of_runs(report: Report) -> Iterator[Alert]:
    """Layouts that came to an error, and those that the target refused."""
    for run in report.runs:
        layout, told = run.layout, run.told_error
        if told:
            own = run.error if isinstance(run.error, Error) else Error(kind="", message="")
            yield _failed(
                report, structs.replace(own, kind=told[0], message=f"{layout}: {told[1]}"), layout
            )
        elif run.verdict == SKIPPED:
            title, sentences = (
                f"Layout {layout} was refused",
                [f"Layout {layout} was skipped: {run.skipped}"],
            )
            yield _alert(
                report,
                rules.REFUSED,
                layout,
                title,
                sentences,
                places_of(report),
                {"layout": layout},
            )


def _failed(report: Report, error: Error, what: str = "check") -> Alert:
    rule = rules.OF_FAILURE.get(error.kind, rules.TOOL)
    # A wrong command is no fault of any file.
    places = () if rule in (rules.USAGE, rules.TOOL, rules.REFERENCE) else places_of(report)
    sentences, details = [error.message, error.way_out], {"kind": error.kind}
    return _alert(
        report, rule, what, rule.topic.title, sentences, (place_of(error), *places), details
    )


def _layouts(layouts: Sequence[str]) -> str:
    unique = list(dict.fromkeys(layouts))
    shown = "; ".join(unique[:8]) + (f" and {len(unique) - 8} more" if len(unique) > 8 else "")
    return f"Layout{'s' if len(unique) > 1 else ''} {shown}"
