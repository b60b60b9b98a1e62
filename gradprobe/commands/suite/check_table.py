"""Several checks on the console."""

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import TypeVar

from rich.text import Text

from ...model.documents import Coverage, FailureGroup, Reports
from ...model.layout_run import FAILED, MATCH, MISMATCH
from ...model.memory_finding import COUNTED, WARNING
from ...model.number import plural, ratio
from ...model.report import Report
from ...render.console import layouts_of
from ...render.notation import CAUTION
from ...render.rows import (
    MOST,
    MOST_OF_A_MATCH,
    Section,
    fitted,
    folded,
    headed,
    lines_in,
)
from ...render.screen import core, rendered
from ...render.terminal import Terminal
from .outcome import LATE, LOST, CheckOutcome

Made = TypeVar("Made", CheckOutcome, Report)
# Beyond so many checks those that match are counted alone: they would take more than two screens, or part of one.
LISTED, FEW = 40, 4
_STYLES = {MATCH: "green", MISMATCH: "bold red", FAILED: CAUTION, WARNING: CAUTION}
_VERDICT, _SECONDS = 8, 7
# More rows than there are.
_ANY = 1 << 30
# Titles of one list that are all shown, and of a longer one.
_LIST, _NAMED = 5, 3


class CheckTable:
    """On a terminal no line is longer than it is wide; in a pipe nothing is cut."""

    def __init__(self, titles: Sequence[str], look: Terminal) -> None:
        self._look, self._title = look, max(map(len, titles), default=4)
        if look.rows is not None:
            self._title = max(4, min(self._title, look.columns // 2 - 10))
        self._lists_all = len(titles) <= (LISTED if look.details else FEW)
        self._room = math.inf if look.details else FEW
        words = f"  {'verdict':<{_VERDICT}}  {'case':<{self._title}}  {'seconds':>{_SECONDS}}"
        line = Text(f"{words}  first mismatch, or why not", "dim")
        self._head = [self._cut(line, look.columns)]

    def line_of(self, report: Report) -> list[Text]:
        """Under a head where it is the first; nothing of matches that are only counted, nor where there is no room."""
        if self._room == 0 or not (self._lists_all or report.verdict != MATCH):
            return []
        self._room -= 1
        title = self._cut(Text(report.title), self._title).plain
        word = WARNING if report.is_warning else report.verdict
        seconds = f"{report.seconds.get('total', 0.0):>{_SECONDS}.1f}"
        line = Text.assemble("  ", (f"{word.upper():<{_VERDICT}}", _STYLES[word]))
        line.append(f"  {title:<{self._title}}  {seconds}  {words_of(report)}".rstrip())
        lines, self._head = [*self._head, self._cut(line, self._look.columns)], []
        return lines

    def _cut(self, line: Text, most: int) -> Text:
        end = "…" if self._look.utf8 else "..."
        if self._look.rows is None or len(line) <= most:
            return line
        return line[: most - len(end)].append(end)


def words_of(report: Report) -> str:
    """Where a check first goes wrong, or why it could not be made; "" of a match."""
    if report.verdict == MATCH:
        return ""
    if report.verdict == FAILED:
        message = report.error.message if report.error else ""
        for known in (f"target {report.target.name!r} ", f"{LOST}: ", f"{LATE}: "):
            message = message.removeprefix(known)
        return " ".join(message.split())
    # One with a wrong element before those in which an identity alone is broken.
    runs = [run for run in report.runs if run.verdict == MISMATCH]
    wrong = min(runs, key=lambda run: run.first_mismatch is None)
    layout = "" if wrong.layout == "contiguous" else f", {wrong.layout}"
    place = wrong.first_mismatch
    if place is None:
        return f"breaks {wrong.broken[0].name if wrong.broken else 'an identity'}{layout}"
    axes = {"batch": place.batch, "head": place.head, "row": place.row, "col": place.col}
    where = " ".join(f"{axis}={index}" for axis, index in axes.items() if index is not None)
    return f"{place.title} {where} {ratio(place.ratio)}x{layout}"


def simplest(checks: Sequence[Made]) -> Made | None:
    """The first that mismatches, else the first error."""
    failing = [made for made in checks if made.verdict != MATCH]
    return min(failing, key=lambda made: made.verdict != MISMATCH, default=None)


def closing(several: Reports, look: Terminal, seconds: float, tracebacks: bool) -> list[Text]:
    """What stands below the table: the simplest failing one, and what all come to."""
    failing, columns, groups = simplest(several.counted), look.columns, several.groups
    refused, shown = several.not_taken or (), [failing] if failing else []
    notes, more = list[Text](), list[Text]()
    if look.details:
        for group in groups[1:]:  # the first of each kind of error: its line in the table is cut
            those = [report for report in several.counted if report.title in group.titles]
            shown += [] if group.is_mismatch else those[:1]
        reasons = [(case.title, case.why) for case in refused]
        notes += _with_reasons("not taken", reasons, "dim", look)
    else:
        if len(groups) > 1:
            notes.append(Text(f"  and {plural(len(groups) - 1, 'more cause')}", "dim"))
        if refused:
            notes.append(Text(f"  {plural(len(refused), 'case')} not taken: --details says why"))
        if failing:
            rest = f"{look.rest} has all of {failing.title}; " if look.rest else ""
            more.append(Text(f"  more: {rest}the same with --details has all", "dim"))
        groups = groups[:1]
    found = [line for report in shown for line in _shown(report, look, tracebacks)]
    sections = [Section([*found, *([Text()] if found and look.details else [])])]
    sections += [Section(list(_group(group, columns)), 2) for group in groups]
    warned = filter(attrgetter("is_warning"), several.reports)
    words = [(report.title, report.warnings[0].words) for report in warned]
    warnings = _with_reasons(COUNTED, words, _STYLES[WARNING], look)
    sections += [Section(notes), Section(warnings, 2)]
    sections.append(Section(_covered(several.coverage, columns), 1))
    table = len(several.reports)
    if table > FEW:
        table = min(FEW, sum(report.verdict != MATCH for report in several.reports))
    most = (MOST if failing else MOST_OF_A_MATCH) - table - 2 - len(more)
    lines = fitted(sections, _ANY if look.details else most, columns)
    return [*lines, *more, Text(_counts(several, seconds), "bold")]


def _counts(several: Reports, seconds: float) -> str:
    found, made = Counter(map(attrgetter("verdict"), several.counted)), len(several.counted)
    planned = made if several.planned is None else several.planned
    warned, errors = len(several.reports) - made, found[FAILED]
    counts = [f"{found[word]} {word}" for word in (MATCH, MISMATCH) if found[word]]
    counts += [plural(errors, FAILED)] if errors else []
    counts = counts or ["none made"]
    counts += [plural(warned, "warning")] if warned else []
    counts += [f"{planned - made} not made"] if made < planned else []
    return f"{plural(planned, 'check')} in {seconds:.1f} s: {', '.join(counts)}"


def _shown(report: Report, look: Terminal, tracebacks: bool) -> list[Text]:
    error, columns = report.error, look.columns
    head = [Text(f"{report.title}:", "bold")]
    if report.verdict != FAILED or error is None:
        own = [Text(), *head] if look.details else head
        return [*own, *(rendered(report, look) if look.details else core(report, columns))]
    if not look.details:
        words = headed("ERROR", CAUTION, error.message, columns, 4, hangs=False)
        return [*head, *words, *folded(error.way_out, columns, rows=2)]
    more = (*error.stderr_tail.splitlines(), *error.trace(tracebacks))
    lines = [Text(f"  {line}") for line in (*error.details, error.way_out, *more) if line]
    lines += lines_in(layouts_of(report), columns)
    again = Text(f"  again: {report.reproduce}")
    return [Text(), *head, Text(f"ERROR  {error.message}"), *lines, again]


def _with_reasons(
    head: str, reasons: Sequence[tuple[str, str]], style: str, look: Terminal
) -> list[Text]:
    found: dict[str, tuple[str, list[str]]] = {}
    for title, why in reasons:
        # What is the same but for its numbers and its layout is told once, in the words of the first.
        alike = re.sub(r"\d+", "0", re.sub(r"\([\w=,-]+: ", "(", why))
        found.setdefault(alike, (why, []))[1].append(title)
    lines = [Text(head, style)] if reasons else []
    for why, titles in found.values():
        words = f"{_listed(titles, '; ')}: {why}"
        in_pipe = look.rows is None
        lines += [Text(f"  {words}", style)] if in_pipe else folded(words, look.columns, style)
    return lines


def _covered(coverage: Coverage | None, columns: int) -> list[Text]:
    if coverage is None:
        return []
    pair = "pair" if coverage.strength == 2 else "triple"  # which earlier releases made
    words = f"a case checks every {pair} of {coverage.properties} properties that it takes: {coverage.held:,}"
    if coverage.missing:
        words += f", but for {plural(coverage.missing, pair)}, which may be refused"
    if not coverage.properties:
        words = "the case without any option is not right, so nothing was combined"
    return folded(words, columns)


def _group(group: FailureGroup, columns: int) -> Iterator[Text]:
    count = plural(len(group.titles), "case" if group.is_mismatch else "error")
    words = f"{group.summary} ({group.cause})" if group.summary else group.cause
    yield from headed(count.upper(), _STYLES[group.verdict], words, columns)
    for sentence in (_listed(group.titles), *group.common):
        yield from folded(sentence, columns)
    if group.shrunk is not None:
        yield Text(f"  smallest: {group.shrunk.reproduce}")
        # Its cause, where that of the larger one is not known.
        for cause in () if group.summary else group.shrunk.causes[:1]:
            yield Text(f"  there {cause.summary} ({cause.fault})")


def _listed(titles: Sequence[str], between: str = ", ") -> str:
    if len(titles) <= _LIST:
        return between.join(titles)
    return f"{between.join(titles[:_NAMED])} and {len(titles) - _NAMED:,} more"


def render_several(several: Reports, look: Terminal, tracebacks: bool) -> Iterator[Text]:
    titles = map(attrgetter("title"), (*several.reports, *(several.not_taken or ())))
    table = CheckTable(list(titles), look)
    for report in sorted(several.reports, key=attrgetter("number")):
        yield from table.line_of(report)
    seconds = sum(report.seconds.get("total", 0.0) for report in several.reports)
    yield from closing(several, look, seconds, tracebacks)
