"""Alerts of reports, the worst first: what every form for CI shows."""

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec import structs

from ..model.layout_run import INHERITED, MISMATCH, SKIPPED, Error, Identity, Intermediate, Run
from ..model.memory_finding import KINDS, WARNING, MemoryFinding, WarningNote
from ..model.number import some
from ..model.report import CauseLine, Report
from .notation import (
    RIGHT_WHEN_CONTIGUOUS,
    cause_in_words,
    counts_in_words,
    element_line,
    errors_of,
    group,
    heads_having,
    identities,
    identity_line,
    quoted,
    residual,
)
from .source_places import Place, place_of, places_of


@dataclass(frozen=True)
class Rule:
    """A kind of finding. Its id is for ever: closed alerts are known by it."""

    id: str
    name: str
    level: str  # SARIF's, or none
    rank: float  # the worst first
    kinds: list[str]
    title: str
    paragraphs: list[str]  # Markdown


def _rule(text: str) -> Rule:
    heading, *paragraphs = (" ".join(each.split()) for each in text.strip().split("\n\n"))
    id, detail, title = heading.split(" | ")
    name, level, rank, *kinds = detail.split(", ")
    return Rule(id, name, level, float(rank), " ".join(kinds).split(), title, paragraphs)


_TEXT = Path(__file__).with_name("templates").joinpath("rules.md").read_text(encoding="utf-8")
_RULES = [_rule(part) for part in re.split(r"^## ", _TEXT, flags=re.MULTILINE)[1:]]
RULES = {rule.id: rule for rule in _RULES}
RULE_OF = {kind: rule for rule in _RULES for kind in rule.kinds}
WRONG, INHERITS, IDENTITY, CAUSE = RULES["GP001"], RULES["GP002"], RULES["GP003"], RULES["GP004"]
REFERENCE, TOOL, USAGE, REFUSED = RULES["GP023"], RULES["GP024"], RULES["GP025"], RULES["GP030"]

SearchResult = Sequence[tuple[Run, Intermediate]]


@dataclass(frozen=True)
class Alert:
    """One finding, in however many layouts."""

    rule: Rule
    check: str
    what: str
    sentences: Sequence[str]
    places: Sequence[Place]  # the best first
    kind: str
    level: str  # that of the rule, or lower

    @property
    def about(self) -> str:
        return self.what.partition(": ")[0] if self.kind in KINDS else self.what

    @property
    def title(self) -> str:
        title = self.rule.title
        return title if self.what == "check" else f"{title}: {self.about}"

    @property
    def fingerprint(self) -> str:
        """Independent of where the line has moved."""
        lower = () if self.level == self.rule.level else (self.level,)
        words = "\0".join((self.rule.id, self.check, self.what, *lower))
        return hashlib.sha256(words.encode(errors="replace")).hexdigest()


def alerts_of(reports: Iterable[Report]) -> list[Alert]:
    found = list[tuple[int, Alert]]()
    for report in reports:
        found += enumerate(alerts_in(report))
    found.sort(key=lambda pair: (-pair[1].rule.rank, pair[0]))
    return [alert for _, alert in found]


def alerts_in(report: Report) -> Iterator[Alert]:
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
        words = [cause_in_words(cause), *map("{}.".format, cause.evidence)]
        words += [cause.edit.diff] if cause.edit is not None and cause.is_certain else []
        yield _alert(report, CAUSE, cause.fault, words, cause.where)
    for status in (MISMATCH, INHERITED):
        for name, found in report.by_status(status):
            yield _of_intermediate(report, name, found, status)
    yield from _broken(report)
    for finding in report.memory:
        yield _stray(report, finding)
    for run in report.runs:
        if told := run.told_error:
            own = run.error if isinstance(run.error, Error) else Error(kind="", message="")
            error = structs.replace(own, kind=told[0], message=f"{run.layout}: {told[1]}")
            yield _failed(report, error, run.layout)
        elif run.verdict == SKIPPED:
            words = [f"Layout {run.layout} was skipped: {run.skipped}"]
            yield _alert(report, REFUSED, run.layout, words)
    is_told = any(report.by_status(MISMATCH)) or any(run.broken for run in report.runs)
    if report.verdict == MISMATCH and not (is_told or report.memory):
        words = ["The check is a mismatch; its report says no more."]
        yield _alert(report, WRONG, "check", words)


def _alert(
    report: Report, rule: Rule, what: str, sentences: Iterable[str],
    seen: Iterable[CauseLine | MemoryFinding | Error | WarningNote] = (), places: Iterable[Place] | None = None,
    kind: str = "", level: str = "",
) -> Alert:  # fmt: skip
    """`seen` names places before `places`, which are the report's if None."""
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
        told.append(RIGHT_WHEN_CONTIGUOUS)
    told += map(cause_in_words, report.causes or report.diagnoses[:1])
    firsts = filter(None, (run.first_mismatch for run, _ in found))
    told += map(element_line, [first for first in firsts if first.title == name][:1])
    return _alert(report, WRONG, name, told, places=places)


def _broken(report: Report) -> Iterator[Alert]:
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
    return f"Layout{'s' * (len(unique) > 1)} {some(map(quoted, unique), 8)}"
