"""Several checks on the console: a line each as it comes, the simplest failing one in full, and what they come to."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TypeVar

from rich.text import Text

from ...model.documents import Coverage, FailureGroup, Reports
from ...model.layout_run import FAILED, MATCH, MISMATCH
from ...model.memory_finding import COUNTED, WARNING
from ...model.number import plural, ratio
from ...model.report import Report
from ...render.console import render_layouts
from ...render.notation import CAUTION
from ...render.rows import (
    MOST,
    MOST_OF_A_MATCH,
    Section,
    fitted,
    folded,
    headed,
    headed_in,
    short,
)
from ...render.screen.screen import core
from ...render.terminal import Terminal, rendered
from .outcome import LATE, LOST, CheckOutcome

Made = TypeVar("Made", CheckOutcome, Report)
# Beyond so many checks those that match are counted alone: they would take more than two screens, or part of one.
LISTED, FEW = 40, 4
_STYLES = {MATCH: "green", MISMATCH: "bold red", FAILED: CAUTION, WARNING: CAUTION}
_VERDICT, _SECONDS = 8, 7
# Titles of one list that are all shown, and of a longer one.
_LIST, _NAMED = 5, 3


class CheckTable:
    """The lines of so many checks. On a terminal none is longer than it is wide; in a pipe nothing is cut."""

    def __init__(self, titles: Sequence[str], look: Terminal) -> None:
        self._look = look
        longest = max(map(len, titles), default=4)
        self._title = (
            max(4, min(longest, look.columns // 2 - 10)) if look.rows is not None else longest
        )
        self._listed = len(titles) <= (LISTED if look.details else FEW)
        self._room = math.inf if look.details else FEW
        self._is_headed = self._listed or look.details

    def head(self) -> list[Text]:
        """What stands above the lines, unless it comes with the first of them."""
        return [self._head()] if self._is_headed else []

    def _head(self) -> Text:
        words = f"  {'verdict':<{_VERDICT}}  {'case':<{self._title}}  {'seconds':>{_SECONDS}}"
        return self._cut(Text(f"{words}  first mismatch, or why not", "dim"))

    def line_of(self, report: Report) -> list[Text]:
        """One check; nothing where it matches and matches are only counted, nor where the screen has no room for it."""
        if self._room == 0 or not (self._listed or report.verdict != MATCH):
            return []
        head = [self._head()] if self._room == FEW and not self._is_headed else []
        self._room -= 1
        return [*head, self.line(report)]

    def line(self, report: Report) -> Text:
        """One check."""
        title = report.title
        if self._look.rows is not None and len(title) > self._title:
            title = title[: self._title - len(self._end)] + self._end
        word = WARNING if report.is_warning else report.verdict
        seconds = f"{report.seconds.get('total', 0.0):>{_SECONDS}.1f}"
        line = Text.assemble("  ", (f"{word.upper():<{_VERDICT}}", _STYLES[word]))
        line.append(f"  {title:<{self._title}}  {seconds}  {words_of(report)}".rstrip())
        return self._cut(line)

    def _cut(self, line: Text) -> Text:
        if self._look.rows is not None and len(line) > self._look.columns:
            line = line[: self._look.columns - len(self._end)]
            line.append(self._end)
        return line

    @property
    def _end(self) -> str:
        return "…" if self._look.utf8 else "..."


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
    wrong = min(
        (run for run in report.runs if run.verdict == MISMATCH),
        key=lambda run: run.first_mismatch is None,
    )
    layout = "" if wrong.layout == "contiguous" else f", {wrong.layout}"
    place = wrong.first_mismatch
    if place is None:
        return f"breaks {wrong.broken[0].name if wrong.broken else 'an identity'}{layout}"
    axes = {"batch": place.batch, "head": place.head, "row": place.row, "col": place.col}
    where = " ".join(f"{axis}={index}" for axis, index in axes.items() if index is not None)
    return f"{place.title} {where} {ratio(place.ratio)}x{layout}"


def simplest(checks: Sequence[Made]) -> Made | None:
    """The first that mismatches, else the first error; None where all match."""
    for verdict in (MISMATCH, FAILED):
        for checked in checks:
            if checked.verdict == verdict:
                return checked
    return None


def _in_full(report: Report, look: Terminal, tracebacks: bool) -> Iterator[Text]:
    """Everything that one check has to say."""
    yield Text(f"{report.title}:")
    error = report.error
    if report.verdict != FAILED or error is None:
        yield from rendered(report, look)
        return
    yield Text(f"ERROR  {error.message}")
    for line in (
        *error.details,
        error.way_out,
        *error.stderr_tail.splitlines(),
        *error.trace(tracebacks),
    ):
        if line:
            yield Text(f"  {line}")
    yield from render_layouts(report, look.columns, utf8=look.utf8)
    yield Text(f"  again: {report.reproduce}")


def _not_taken(several: Reports, look: Terminal) -> list[Text]:
    """What a target does not take, one line for each reason; on a terminal folded."""
    return _with_reasons(
        "not taken", [(case.title, case.why) for case in several.not_taken or ()], "dim", look
    )


def _warnings(several: Reports, look: Terminal) -> list[Text]:
    """What is told and does not count, likewise; with what was raised, each once."""
    warned = [report for report in several.reports if report.is_warning]
    words = [(report.title, report.warnings[0].words) for report in warned]
    lines, seen = _with_reasons(COUNTED, words, _STYLES[WARNING], look), set()
    for report in warned:
        details = report.error.details if report.error else ()
        if details and details not in seen:
            seen.add(details)
            lines += [Text(f"  {report.title}:"), *(Text(f"    {line}") for line in details)]
    return lines


def _with_reasons(
    head: str, reasons: Sequence[tuple[str, str]], style: str, look: Terminal
) -> list[Text]:
    titles: dict[str, list[str]] = {}
    first: dict[str, str] = {}
    for title, why in reasons:
        # What is the same but for its numbers and its layout is told once, in the words of the first.
        alike = re.sub(r"\d+", "0", re.sub(r"\([\w=,-]+: ", "(", why))
        titles.setdefault(first.setdefault(alike, why), []).append(title)
    lines = [Text(head, style)] if reasons else []
    for why, those in titles.items():
        words = f"{_listed(those, '; ')}: {why}"
        lines += (
            [Text(f"  {words}", style)]
            if look.rows is None
            else folded(words, look.columns, style)
        )
    return lines


def _counts(several: Reports) -> str:
    """How many came to what: `12 match, 2 mismatch, 1 warning`."""
    found = Counter(report.verdict for report in several.counted)
    words = []
    for word in (MATCH, MISMATCH, FAILED):
        if found[word]:
            words.append(plural(found[word], word) if word == FAILED else f"{found[word]} {word}")
    warned = len(several.reports) - len(several.counted)
    return ", ".join(
        [*(words or ["none made"]), *([plural(warned, "warning")] if warned else [])]
    )


def _summary(several: Reports, seconds: float) -> Text:
    """What they come to, in one line, and how many are left."""
    made = len(several.counted)
    planned = made if several.planned is None else several.planned
    left = f", {planned - made} not made" if made < planned else ""
    return Text(
        f"{plural(planned, 'check')} in {seconds:.1f} s: {_counts(several)}{left}", "bold"
    )


def closing(several: Reports, look: Terminal, seconds: float, tracebacks: bool) -> list[Text]:
    """What stands below the table of several checks: the simplest failing one, and what they come to."""
    lines = (
        _closing_in_full(several, look, tracebacks)
        if look.details
        else _on_one_screen(several, look)
    )
    return [*lines, _summary(several, seconds)]


def _on_one_screen(several: Reports, look: Terminal) -> list[Text]:
    """The place, the cause and the edit of the simplest failing one, then its group."""
    failing, columns = simplest(several.counted), look.columns
    groups, refused = several.groups, len(several.not_taken or ())
    others = (
        [Text(f"  and {plural(len(groups) - 1, 'more cause')}", "dim")] if len(groups) > 1 else []
    )
    untaken = (
        [Text(f"  {plural(refused, 'case')} not taken: --details says why")] if refused else []
    )
    sections = [
        Section(_simplest(failing, columns) if failing else []),
        Section(list(_group(groups[0], columns)) if groups else [], 2),
        Section(others),
        Section(untaken),
        Section(_warnings(several, look), 2),
        Section(list(_covered(several.coverage, columns)), 1),
    ]
    rest = f"{look.rest} has all of {failing.title}; " if look.rest and failing else ""
    more = [Text(f"  more: {rest}the same with --details has all", "dim")] if failing else []
    table = (
        sum(report.verdict != MATCH for report in several.reports)
        if len(several.reports) > FEW
        else FEW
    )
    most = (MOST if failing else MOST_OF_A_MATCH) - min(table, FEW) - 2 - len(more)
    return [*fitted(sections, most, columns), *more]


def _simplest(report: Report, columns: int) -> list[Text]:
    """One that fails, in short; of an error its words."""
    title = Text(f"{report.title}:", "bold")
    if report.verdict != FAILED or report.error is None:
        return [title, *core(report, columns)]
    error = headed_in("ERROR ", CAUTION, report.error.message, columns, 4)
    return [title, *error, *short(report.error.way_out, columns)]


def _closing_in_full(several: Reports, look: Terminal, tracebacks: bool) -> Iterator[Text]:
    yield from (*_not_taken(several, look), *_warnings(several, look))
    if failing := simplest(several.counted):
        for report in (failing, *_other_errors(several, failing)):
            yield from (Text(), *_in_full(report, look, tracebacks))
        yield Text()
        for group in several.groups:
            yield from _group(group, look.columns)
        if several.groups:
            yield Text()
    yield from _covered(several.coverage, look.columns)


def _other_errors(several: Reports, shown: Report) -> Iterator[Report]:
    """The first of each kind of error: its line in the table is cut."""
    for group in several.groups:
        if not group.is_mismatch and shown.title not in group.titles:
            yield from [report for report in several.counted if report.title in group.titles][:1]


def _covered(coverage: Coverage | None, columns: int) -> Iterator[Text]:
    """Which combinations the cases of a battery hold."""
    if coverage is None:
        return
    if not coverage.properties:
        yield from folded(
            "the case without any option is not right, so nothing was combined", columns
        )
        return
    for words, titles in (("alone", coverage.wrong_alone), ("together", coverage.wrong_together)):
        if titles:
            yield from folded(
                f"left out of later cases, since wrong {words}: {', '.join(titles)}", columns
            )
    name = "pair" if coverage.strength == 2 else "triple"
    words = f"a case checks every {name} of {coverage.properties} properties that it takes: {coverage.held:,}"
    if coverage.missing:
        words = f"{plural(coverage.held, name)} of {coverage.properties} properties are checked by a case"
        words += f"; {plural(coverage.missing, name)} do not, and may be refused"
    yield from folded(words, columns)


def _group(group: FailureGroup, columns: int) -> Iterator[Text]:
    """The failures of one cause: how many, why, what sets them apart, and a smallest case."""
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
    left = len(titles) - _NAMED if len(titles) > _LIST else 0
    return between.join(titles[: _NAMED if left else _LIST]) + (
        f" and {left:,} more" if left else ""
    )


def render_several(several: Reports, look: Terminal, tracebacks: bool) -> Iterator[Text]:
    """Several checks that were made before, as they are shown when they are made."""
    titles = [report.title for report in several.reports]
    table = CheckTable([*titles, *(case.title for case in several.not_taken or ())], look)
    yield from table.head()
    for report in sorted(several.reports, key=lambda report: report.number):
        yield from table.line_of(report)
    seconds = sum(report.seconds.get("total", 0.0) for report in several.reports)
    yield from closing(several, look, seconds, tracebacks)
