"""What is wrong in reports, one alert a finding and the worst first: what every form for CI shows."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from msgspec import structs

from ..model.layout_run import INHERITED, MISMATCH, SKIPPED, Error, Identity, Intermediate, Run
from ..model.memory_finding import KINDS, WARNING, MemoryFinding, WarningNote
from ..model.report import CauseLine, Diagnosis, Report
from .notation import (
    cause_in_words,
    counts_in_words,
    element_line,
    errors_of,
    group,
    heads_having,
    identities,
    identity_line,
    is_silent,
    residual,
)
from .source_places import Place, place_of, places_of
from .topic import RULE, Topic, topics


@dataclass(frozen=True)
class Rule:
    """One kind of finding. No id is given to another or taken back: alerts that somebody closed are known by it."""

    id: str
    name: str
    level: str
    """SARIF's: error, warning, note, or none for what is told and no finding."""
    rank: float
    """0 to 100, the worst first."""
    topic: Topic


RULES, RULE_OF = dict[str, Rule](), dict[str, Rule]()
"""The rules by their ids; and by the kinds of failures, of findings about memory and of warnings."""
for _topic in topics():
    if _topic.kind == RULE and _topic.name.startswith("GP"):
        _name, _level, _rank, *_kinds = _topic.detail.split(", ")
        RULES[_topic.name] = Rule(_topic.name, _name, _level, float(_rank), _topic)
        RULE_OF |= dict.fromkeys(" ".join(_kinds).split(), RULES[_topic.name])
WRONG, INHERITS, IDENTITY, CAUSE = RULES["GP001"], RULES["GP002"], RULES["GP003"], RULES["GP004"]
REFERENCE, TOOL, USAGE, REFUSED = RULES["GP023"], RULES["GP024"], RULES["GP025"], RULES["GP030"]

SearchResult = Sequence[tuple[Run, Intermediate]]
"""An intermediate, in the runs in which it has a status."""


@dataclass(frozen=True)
class Alert:
    """One finding. The same finding in several layouts is one."""

    rule: Rule
    check: str
    """The target, and the title of its case."""
    what: str
    """What it is about: an intermediate, an identity, a tensor and its kernel with their line, "check"."""
    sentences: Sequence[str]
    places: Sequence[Place]
    """Where to look, the best first."""
    kind: str
    """Of a failure, a finding about memory or a warning."""
    level: str
    """SARIF's: that of the rule, or lower where it is told as a warning."""

    @property
    def about(self) -> str:
        """What it is about, without a line."""
        return self.what.partition(": ")[0] if self.kind in KINDS else self.what

    @property
    def title(self) -> str:
        title = self.rule.topic.title
        return title if self.what == "check" else f"{title}: {self.about}"

    @property
    def fingerprint(self) -> str:
        """The same for the same finding of the same check, wherever its line has moved and however large it is."""
        lower = () if self.level == self.rule.level else (self.level,)
        words = "\0".join((self.rule.id, self.check, self.what, *lower))
        return hashlib.sha256(words.encode(errors="replace")).hexdigest()


def alerts_of(reports: Iterable[Report]) -> list[Alert]:
    """Every finding of the reports, the worst first: by the rank of their rule, then as a report tells them."""
    found = list[tuple[int, Alert]]()
    for report in reports:
        found += enumerate(alerts_in(report))
    found.sort(key=lambda pair: (-pair[1].rule.rank, pair[0]))
    return [alert for _, alert in found]


def alerts_in(report: Report) -> Iterator[Alert]:
    """Those of one report: errors as they are found, in the order of the dataflow, then warnings."""
    yield from _errors(errors_of(report))
    for warned in report.warnings:
        kind, layouts = warned.kind, warned.layouts
        seen: list[WarningNote | MemoryFinding] = [warned]
        seen += (one for one in report.memory if one.layout in ("", *layouts))
        told = [f"{warned.words}.", f"{_layouts(layouts)}." if layouts else ""]
        yield _alert(report, RULE_OF[kind], warned.about, told, seen, kind=kind, level=WARNING)


def _errors(report: Report) -> Iterator[Alert]:
    if error := report.own_error:
        yield _failed(report, error, "check")
    for cause in report.causes:
        yield _cause(report, cause)
    for status in (MISMATCH, INHERITED):
        for name, found in report.by_status(status):
            yield _of_intermediate(report, name, found, status)
    yield from _broken(report)
    for finding in report.memory:
        yield _stray(report, finding)
    for run in report.runs:
        if told := run.told_error:
            own = run.error if isinstance(run.error, Error) else Error(kind="", message="")
            message = f"{run.layout}: {told[1]}"
            yield _failed(
                report, structs.replace(own, kind=told[0], message=message), run.layout
            )
        elif run.verdict == SKIPPED:
            words = f"Layout {run.layout} was skipped: {run.skipped}"
            yield _alert(report, REFUSED, run.layout, [words])
    if is_silent(report):
        yield _alert(
            report, WRONG, "check", ["The check is a mismatch; its report says no more."]
        )


def _alert(
    report: Report,
    rule: Rule,
    what: str,
    sentences: Iterable[str],
    seen: Iterable[CauseLine | MemoryFinding | Error | WarningNote] = (),
    places: Iterable[Place] | None = None,
    kind: str = "",
    level: str = "",
) -> Alert:
    """With what every alert of a report says; a place without a file is none.

    Args:
        seen: what names places before `places`.
        places: None for those of the report.
    """
    again = f"Again: {report.reproduce}" if report.reproduce else ""
    found = [*map(place_of, seen), *(places_of(report) if places is None else places)]
    unique = list(dict.fromkeys(place for place in found if place.file))
    told = list(filter(None, (*sentences, again)))
    return Alert(rule, report.name, what, told, unique, kind, level or rule.level)


def _failed(report: Report, error: Error, what: str) -> Alert:
    rule = RULE_OF.get(error.kind, TOOL)
    # A wrong command is no fault of any file.
    places = () if rule in (USAGE, TOOL, REFERENCE) else None
    words = error.message, error.way_out
    return _alert(report, rule, what, words, [error], places, error.kind)


def _cause(report: Report, cause: Diagnosis) -> Alert:
    sentences = [cause_in_words(cause), *map("{}.".format, cause.evidence)]
    if cause.edit is not None and cause.is_certain:
        sentences.append(cause.edit.diff)
    return _alert(report, CAUSE, cause.fault, sentences, cause.where)


def _stray(report: Report, finding: MemoryFinding) -> Alert:
    about = " in ".join(filter(None, (finding.tensor, finding.kernel)))
    words = finding.sentence, f"The line: {finding.code}" if finding.code else ""
    rule, what = RULE_OF[finding.kind], f"{about}: {finding.code}"
    return _alert(report, rule, what, words, [finding], kind=finding.kind)


def _of_intermediate(report: Report, name: str, found: SearchResult, status: str) -> Alert:
    run, worst = max(found, key=lambda pair: pair[1].ratio)
    layouts = _layouts(run.layout for run, _ in found)
    extent = f"{heads_having(worst, status)}; {counts_in_words(worst)} in {run.layout}."
    places = places_of(report, worst.name, inherits=status == INHERITED)
    if status == INHERITED:
        words = f"{name} only inherits: it is wrong, but right given its wrong inputs."
        causes = " and ".join(f"{cause.fault} ({cause.summary})" for cause in report.causes)
        told = [words, f"{layouts}: {extent}", f"It comes from {causes}." if causes else ""]
        return _alert(report, INHERITS, name, told, places=places)
    words = f"{name} is wrong by itself: its own inputs do not explain it."
    told = [words, f"{layouts}: {extent}"]
    if report.is_right_when_contiguous:
        why = "the arithmetic is right, an address (a stride) is not"
        told.append(f"Right when contiguous: {why}.")
    told += map(cause_in_words, report.causes or report.diagnoses[:1])
    firsts = filter(None, (run.first_mismatch for run, _ in found))
    told += map(element_line, [first for first in firsts if first.title == name][:1])
    return _alert(report, WRONG, name, told, places=places)


def _broken(report: Report) -> Iterator[Alert]:
    """One alert an identity, with the layout in which it is furthest off."""
    broken = list[tuple[str, Identity]]()
    for run in report.runs:
        broken += [(run.layout, one) for one in identities(run).values() if not one.holds]
    for key, those in group(broken, lambda pair: pair[1].key).items():
        layout, identity = max(those, key=lambda pair: pair[1].ratio)
        layouts = _layouts(layout for layout, _ in those)
        sentences = [f"{residual(identity)} in {layout}.", f"{layouts}."]
        sentences += [] if report.first_mismatch else [identity_line(identity)]
        yield _alert(report, IDENTITY, key, sentences)


def _layouts(layouts: Iterable[str]) -> str:
    unique = list(dict.fromkeys(layouts))
    shown = "; ".join(unique[:8]) + (f" and {len(unique) - 8} more" if len(unique) > 8 else "")
    return f"Layout{'s' * (len(unique) > 1)} {shown}"
