"""Several checks on the console: a line each as it comes, the simplest failing one in full, and what they come to."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TypeVar

from rich.text import Text

from ...model.documents import PAIRS, TRIPLES, AxisShare, Coverage, FailureGroup, RefusedCase, Reports
from ...model.layout_run import FAILED, MATCH, MISMATCH, Run
from ...model.memory_finding import COUNTED, WARNING
from ...model.number import plural
from ...model.report import Report
from ...render.console import render_layouts
from ...render.notation import CAUTION, folded, headed, ratio, wrapped
from ...render.screen.fitting import MOST, MOST_OF_A_MATCH, Section, fitted
from ...render.screen.screen import core, headed_in, short
from ...render.terminal import Terminal, rendered
from .checked import LATE, LOST, CheckOutcome

Made = TypeVar("Made", CheckOutcome, Report)
# Beyond so many checks those that match are counted alone: they would take more than two screens, or part of one.
LISTED, FEW = 40, 4
_STYLES = {"match": "green", "mismatch": "bold red", "error": CAUTION, "warning": CAUTION}
_VERDICT, _SECONDS = 8, 7


class CheckTable:
    """The lines of so many checks. On a terminal none is longer than it is wide; in a pipe nothing is cut."""

    def __init__(self, titles: Sequence[str], look: Terminal) -> None:
        self._look = look
        longest = max(map(len, titles), default=4)
        self._title = max(4, min(longest, look.columns // 2 - 10)) if look.rows is not None else longest
        self._listed = len(titles) <= (LISTED if look.details else FEW)
        self._room = math.inf if look.details else FEW

    def head(self) -> list[Text]:
        """What stands above the lines, unless it comes with the first of them."""
        return [self._head] if self._listed or self._look.details else []

    @property
    def _head(self) -> Text:
        words = (
            f"  {'verdict':<{_VERDICT}}  {'case':<{self._title}}  {'seconds':>{_SECONDS}}  first mismatch, or why not"
        )
        return self._cut(Text(words, "dim"))

    def line_of(self, report: Report) -> list[Text]:
        """One check; nothing where it matches and matches are only counted, nor where the screen has no room for it."""
        if self._room == 0 or not (self._listed or report.verdict != MATCH):
            return []
        is_first, self._room = self._room == FEW and not self.head(), self._room - 1
        return [*([self._head] if is_first else []), self.line(report)]

    def line(self, report: Report) -> Text:
        """One check."""
        title = self._shortened(report.title, self._title)
        word = WARNING if report.is_warning else report.verdict
        line = Text.assemble(
            "  ", (f"{word.upper():<{_VERDICT}}", _STYLES[word]), f"  {title:<{self._title}}  ",
            f"{report.seconds.get('total', 0.0):>{_SECONDS}.1f}  {words_of(report)}",
        )  # fmt: skip
        line.rstrip()
        return self._cut(line)

    def _cut(self, line: Text) -> Text:
        if self._look.rows is not None and len(line) > self._look.columns:
            end = self._end()
            line = line[: self._look.columns - len(end)]
            line.append(end)
        return line

    def _shortened(self, words: str, most: int) -> str:
        end = self._end()
        return words if len(words) <= most or self._look.rows is None else words[: most - len(end)] + end

    def _end(self) -> str:
        return "…" if self._look.utf8 else "..."


def words_of(report: Report) -> str:
    """Where a check first goes wrong, or why it could not be made; "" of a match."""
    if report.verdict == FAILED:
        message = report.error.message if report.error else ""
        message = message.removeprefix(f"target {report.target.name!r} ")
        return " ".join(message.removeprefix(f"{LOST}: ").removeprefix(f"{LATE}: ").split())
    if report.verdict == MATCH:
        return ""
    # One with a wrong element before those in which an identity alone is broken.
    wrong = min((run for run in report.runs if run.verdict == MISMATCH), key=lambda run: run.first_mismatch is None)
    return _place(wrong) + (f", {wrong.layout}" if wrong.layout != "contiguous" else "")


def _place(run: Run) -> str:
    place = run.first_mismatch
    if place is None:
        return f"breaks {run.broken[0].name if run.broken else 'an identity'}"
    axes = {"batch": place.batch, "head": place.head, "row": place.row, "col": place.col}
    told = " ".join(f"{axis}={index}" for axis, index in axes.items() if index is not None)
    return f"{place.title} {told} {ratio(place.ratio)}x"


def simplest(checks: Sequence[Made]) -> Made | None:
    """The first that mismatches, else the first error; None where all match."""
    for verdict in ("mismatch", "error"):
        for checked in checks:
            if checked.verdict == verdict:
                return checked
    return None


def in_full(report: Report, look: Terminal, tracebacks: bool) -> Iterator[Text]:
    """Everything that one check has to say."""
    yield Text(f"{report.title}:")
    error = report.error
    if report.verdict != FAILED or error is None:
        yield from rendered(report, look)
        return
    yield Text(f"ERROR  {error.message}")
    told = (*error.details, *filter(None, [error.way_out]), *error.stderr_tail.splitlines(), *error.trace(tracebacks))
    yield from (Text(f"  {line}") for line in told)
    yield from render_layouts(report, look.columns, utf8=look.utf8)
    yield Text(f"  again: {report.reproduce}")


def not_taken(untaken: Sequence[RefusedCase], look: Terminal) -> list[Text]:
    """What a target does not take, one line for each reason; on a terminal folded."""
    return _with_reasons("not taken", [(one.title, one.why) for one in untaken], "dim", look)


def warnings(warned: Sequence[Report], look: Terminal) -> list[Text]:
    """What is told and does not count, likewise."""
    told = [(one.title, one.warnings[0].words) for one in warned]
    # What was raised, where the words cannot say all of it: each once.
    raised = {one.error.details: one.title for one in reversed(warned) if one.error and one.error.details}
    lines = [[f"  {title}:", *(f"    {line}" for line in details)] for details, title in reversed(raised.items())]
    return [*_with_reasons(COUNTED, told, _STYLES[WARNING], look), *(Text(line) for each in lines for line in each)]


def _with_reasons(head: str, told: Sequence[tuple[str, str]], style: str, look: Terminal) -> list[Text]:
    titles: dict[str, list[str]] = {}
    first: dict[str, str] = {}
    for title, why in told:
        # What is the same but for its numbers and its layout is told once, in the words of the first.
        alike = re.sub(r"\d+", "0", re.sub(r"\([\w=,-]+: ", "(", why))
        titles.setdefault(first.setdefault(alike, why), []).append(title)
    words = [f"{_titles(those, '; ')}: {why}" for why, those in titles.items()]
    lines = [Text(f"  {one}", style) for one in words]
    if look.rows is not None:
        lines = [line for one in words for line in folded(one, look.columns, style)]
    return [Text(head, style), *lines] if words else []


def counts(several: Reports) -> Text:
    """How many came to what: `12 match, 2 mismatch, 1 warning`."""
    found = Counter(report.verdict for report in several.counted)
    words = [
        f"{found[word]} {word}" if word != "error" else plural(found[word], word) for word in _STYLES if found[word]
    ]
    warned = len(several.reports) - len(several.counted)
    return Text(", ".join([*(words or ["none made"]), *([plural(warned, "warning")] if warned else [])]), "bold")


def _summary(several: Reports, seconds: float) -> Text:
    """What they come to, in one line, and how many are left."""
    made = len(several.counted)
    planned = made if several.planned is None else several.planned
    left = f", {planned - made} not made" if made < planned else ""
    return Text(f"{plural(planned, 'check')} in {seconds:.1f} s: {counts(several).plain}{left}", "bold")


def closing(several: Reports, look: Terminal, seconds: float, tracebacks: bool) -> Iterator[Text]:
    """What stands below the table of several checks: the simplest failing one, and what they come to."""
    if not look.details:
        return iter(_on_one_screen(several, look, seconds))
    return _closing_in_full(several, look, seconds, tracebacks)


def _on_one_screen(several: Reports, look: Terminal, seconds: float) -> list[Text]:
    """The place, the cause and the edit of the simplest failing one, then its group."""
    failing, columns = simplest(several.counted), look.columns
    warned = [report for report in several.reports if report.is_warning]
    groups = [line for group in several.groups[:1] for line in _group(group, columns)]
    others, refused = plural(len(several.groups) - 1, "more cause"), len(several.not_taken or ())
    sections = [
        Section(_simplest(failing, columns) if failing else []),
        Section(groups, 2),
        Section([Text(f"  and {others}", "dim")] if len(several.groups) > 1 else []),
        Section([Text(f"  {plural(refused, 'case')} not taken: --details says why")] if refused else []),
        Section(warnings(warned, look), 2),
        Section([] if several.coverage is None else list(_covered(several.coverage, columns)), 1),
    ]
    rest = f"{look.rest} has all of {failing.title}; " if look.rest and failing else ""
    more = [Text(f"  more: {rest}the same with --details has all", "dim")] if failing else []
    table = sum(report.verdict != MATCH for report in several.reports) if len(several.reports) > FEW else FEW
    most = (MOST if failing else MOST_OF_A_MATCH) - min(table, FEW) - 2 - len(more)
    return [*fitted(sections, most, columns), *more, _summary(several, seconds)]


def _simplest(report: Report, columns: int) -> list[Text]:
    """One that fails, in short; of an error its words."""
    title = Text(f"{report.title}:", "bold")
    if report.verdict != FAILED or report.error is None:
        return [title, *core(report, columns)]
    return [
        title,
        *headed_in("ERROR ", CAUTION, report.error.message, columns, 4),
        *short(report.error.way_out, columns),
    ]


def _closing_in_full(several: Reports, look: Terminal, seconds: float, tracebacks: bool) -> Iterator[Text]:
    warned = [report for report in several.reports if report.is_warning]
    yield from (*not_taken(several.not_taken or (), look), *warnings(warned, look))
    if failing := simplest(several.counted):
        for report in (failing, *_other_errors(several, failing)):
            yield from (Text(), *in_full(report, look, tracebacks))
        yield Text()
        yield from (line for group in several.groups for line in _group(group, look.columns))
        yield from [Text()] if several.groups else []
    yield from _axes(several.axes, look.columns)
    yield from [] if several.coverage is None else _covered(several.coverage, look.columns)
    yield _summary(several, seconds)


def _other_errors(several: Reports, shown: Report) -> Iterator[Report]:
    """The first of each kind of error: its line in the table is cut."""
    errors = [group.titles for group in several.groups if not group.is_mismatch and shown.title not in group.titles]
    for titles in errors:
        yield from [report for report in several.counted if report.title in titles][:1]


_COMBINED = {PAIRS: "pair", TRIPLES: "triple"}


def _covered(coverage: Coverage, columns: int) -> Iterator[Text]:
    """Which combinations the cases of a battery hold."""
    name = _COMBINED[coverage.strength]
    if not coverage.properties:
        yield from folded("the case without any option is not right, so nothing was combined", columns)
        return
    for words, titles in (("alone", coverage.wrong_alone), ("together", coverage.wrong_together)):
        if titles:
            yield from folded(f"left out of later cases, since wrong {words}: {', '.join(titles)}", columns)
    every = f"a case checks every {name} of {coverage.properties} properties that it takes: {coverage.held:,}"
    some = f"{plural(coverage.held, name)} of {coverage.properties} properties are checked by a case"
    left = f"{plural(coverage.missing, name)} do not, and may be refused"
    yield from folded(f"{some}; {left}" if coverage.missing else every, columns)


# Titles of one list that are all shown, and of a longer one.
_LIST, _NAMED = 5, 3


def _group(group: FailureGroup, columns: int) -> Iterator[Text]:
    """The failures of one cause: how many, why, what sets them apart, and a smallest case."""
    count = plural(len(group.titles), "case" if group.is_mismatch else "error")
    words = f"{group.summary} ({group.cause})" if group.summary else group.cause
    yield from headed(count.upper(), _STYLES[group.verdict], words, columns)
    for sentence in (_titles(group.titles), *group.common):
        yield from folded(sentence, columns)
    if group.shrunk is not None:
        yield from (Text(line) for line in _smallest(group.shrunk, is_named=bool(group.summary)))


# Axes that are shown, those first along which failures differ most; the others are in the JSON.
_AXES = 8


def _axes(axes: Sequence[AxisShare], columns: int) -> Iterator[Text]:
    """How many fail for each value of each axis, an axis a line; nothing where none fails."""
    if not any(share.failed for share in axes):
        return
    shares = {axis: list(those) for axis, those in groupby(axes, lambda share: share.axis)}
    told = sorted(shares, key=lambda axis: -_spread(shares[axis]))[:_AXES]
    width = max(map(len, told))
    yield Text("failed, of those made, by axis", "dim")
    for axis in (axis for axis in shares if axis in told):
        words = [f"{_value(share)}: {share.failed} of {share.made}".translate(_KEPT) for share in shares[axis]]
        first, *rest = wrapped("   ".join(words), max(columns - width - 2, 40))
        for head, line in ((f"  {axis:<{width}}", first), *((" " * width, line) for line in rest)):
            yield Text((head + line).translate(_BLANKS))
    yield Text()


# Blanks and hyphens at which no line may end, and back.
_KEPT = {ord(" "): "\N{NO-BREAK SPACE}", ord("-"): "\N{NON-BREAKING HYPHEN}"}
_BLANKS = {ord(kept): chr(plain) for plain, kept in _KEPT.items()}


def _value(share: AxisShare) -> str:
    """Without what says the axis once more: `float16`, not `dtype float16`."""
    return share.value.removeprefix(f"{share.axis} ").removeprefix("= ")


def _spread(shares: Sequence[AxisShare]) -> float:
    """How far the shares that fail are apart, beyond what so many cases vary by themselves: Pearson's chi square."""
    failed, made = sum(share.failed for share in shares), sum(share.made for share in shares)
    if failed in (0, made):
        return 0.0
    rate = failed / made
    return sum((share.failed - share.made * rate) ** 2 / (share.made * rate * (1 - rate)) for share in shares)


def _titles(titles: Sequence[str], between: str = ", ") -> str:
    left = len(titles) - _NAMED if len(titles) > _LIST else 0
    return between.join(titles[: _NAMED if left else _LIST]) + (f" and {left:,} more" if left else "")


def _smallest(shrunk: Report, *, is_named: bool) -> Iterator[str]:
    """The command line of the smallest case; with its cause where that of the larger one is not known."""
    yield f"  smallest: {shrunk.reproduce}"
    yield from (f"  there {one.summary} ({one.fault})" for one in shrunk.causes[: not is_named])


def render_several(several: Reports, look: Terminal, tracebacks: bool) -> Iterator[Text]:
    """Several checks that were made before, as they are shown when they are made."""
    table = CheckTable([*(one.title for one in several.reports), *(one.title for one in several.not_taken or ())], look)
    yield from table.head()
    for report in sorted(several.reports, key=lambda report: report.number):
        yield from table.line_of(report)
    seconds = sum(report.seconds.get("total", 0.0) for report in several.reports)
    yield from closing(several, look, seconds, tracebacks)
