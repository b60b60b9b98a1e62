"""A Markdown table of reports, for the summary of a GitHub step: a row a check and layout, the worst first."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ..model.documents import Reports
from ..model.layout_run import CRASHED, FAILED, INCOMPLETE, INHERITED, MATCH, MISMATCH, SKIPPED, Run
from ..model.memory_finding import WARNING, MemoryFinding, WarningNote
from ..model.number import plural
from ..model.report import Report, TriedEdit, passing_edit
from ..model.writing import visible
from .notation import cause_in_words, element_line, errors_of, identities, ratio, so_far, told_apart
from .source_places import Base, Place, base_of, place_of, places_of

# GitHub drops a summary that is larger.
MOST_BYTES = 2**20
_ORDER = (FAILED, CRASHED, MISMATCH, WARNING, SKIPPED, MATCH)
_SAID = {MISMATCH: "wrong", FAILED: "not checked", INCOMPLETE: "not finished", MATCH: "right", WARNING: "warned of"}
_HEAD = "| verdict | check | layout | wrong by itself | only inherited | worst | what | where |\n" + "|--" * 8 + "|\n"
# Signs of Markdown, HTML, mentions, issues, emoji and links.
_MARKUP = re.compile(r"[\\`*_{}\[\]()<>#+!|&~$@:]|(?<=www)\.")


@dataclass(frozen=True)
class TableRow:
    """One check in one layout, or what is told of the check as a whole."""

    verdict: str
    ratio: float
    cells: tuple[str, ...]
    """Plain text, what follows the verdict."""


def text(several: Reports, code: int | None, most: int = MOST_BYTES) -> str:
    """The document; as long as the command runs, with a check that is not finished."""
    return as_markdown(so_far(several, code), base_of(several), most)


def as_markdown(reports: Sequence[Report], base: Base, most: int = MOST_BYTES) -> str:
    """A heading, a table, and the commands that repeat what does not match, in `most` bytes of UTF-8 at most.

    Where that is too little, the rows at the end are left out, and the last line says how many; "" where not even the
    heading has room.
    """
    reports = told_apart(reports)
    rows = [row for report in reports for row in _rows(report, base)]
    lines = [_row(row) for row in sorted(rows, key=lambda row: (_ORDER.index(row.verdict), -row.ratio))]
    wrong = [report for report in reports if errors_of(report).verdict != MATCH and report.reproduce]
    again = [f"again: <code>{_plain(report.reproduce)}</code><br>\n" for report in wrong]
    causes = ((report, cause) for report in reports for cause in errors_of(report).causes)
    why = [f"\n{_plain(f'{report.name}: {cause_in_words(cause)}')}\n" for report, cause in causes]
    edits = [_edit(report, edit) for report in reports if (edit := passing_edit(report)) is not None]
    return _within(_heading(reports) + _HEAD, lines, ["\n" if again else "", *again, *why, *edits], most)


def _edit(report: Report, edit: TriedEdit) -> str:
    """The edit that was tried as a block of code, in a fence that nothing in it closes."""
    fence = "~" * max([3, *(len(run) + 1 for run in re.findall("~+", edit.diff))])
    words = f"{'Fix' if edit.is_certain else 'Matches here, an edit'} of {report.name}, tried: {edit.words}"
    return f"\n{_plain(words)}\n\n{fence}diff\n{visible(edit.diff)}\n{fence}\n"


def _heading(reports: Sequence[Report]) -> str:
    verdicts = Counter(report.verdict for report in reports if not report.is_warning)
    verdicts[WARNING] = sum(len(report.warnings) for report in reports)
    words = [f"{verdicts[word]} {said}" for word, said in _SAID.items() if verdicts[word]]
    return f"### gradprobe: {plural(len(reports), 'check')}, {', '.join(words)}\n\n"


def _within(head: str, rows: Sequence[str], tail: Sequence[str], most: int) -> str:
    """As many rows as there is room for, and then as much of the tail."""
    text, left = [head], most - len(head.encode()) - 120  # the last line's own length
    if left < 0:
        return ""
    for at, line in enumerate((*rows, *tail)):
        left -= len(line.encode())
        if left < 0:
            rest = len(rows) - at
            said = f"{plural(rest, 'row')} more" if rest > 0 else "Some commands"
            return "".join(text) + f"\n{said} left out: a summary holds {most:,} bytes at most.\n"
        text.append(line)
    return "".join(text)


def _rows(report: Report, base: Base) -> Iterator[TableRow]:
    for row, part in _parts(report, base):
        is_mild = report.is_warning or (isinstance(part, (Run, MemoryFinding)) and part.severity == WARNING)
        yield replace(row, verdict=WARNING) if is_mild and row.verdict in (MISMATCH, FAILED, CRASHED) else row


def _parts(report: Report, base: Base) -> Iterator[tuple[TableRow, Report | Run | MemoryFinding | WarningNote]]:
    """Each row with the part of the report that it tells."""
    place = next(iter(places_of(report)), None)
    where = base.shorten(place) if place else ""
    for warned in report.warnings:
        line = base.shorten(place_of(warned)) if warned.file else where
        cells = (report.name, "; ".join(warned.layouts), "", "", "", warned.words, line)
        yield TableRow(WARNING, float("inf"), cells), warned
    if error := report.own_error:
        words = " ".join(filter(None, (error.message, error.way_out)))
        yield TableRow(FAILED, float("inf"), (report.name, "", "", "", "", f"{error.kind}: {words}", where)), report
    for run in report.runs:
        yield _of_run(run, report.name, where), run
    for finding in report.memory:
        line = base.shorten(Place(finding.file, finding.line)) if finding.file else ""
        seen = (report.name, finding.kind, finding.tensor, "", "", finding.sentence, line)
        yield TableRow(MISMATCH, float("inf"), seen), finding


def _of_run(run: Run, check: str, where: str) -> TableRow:
    failed, worst = run.told_error, max(run.compares, key=lambda intermediate: intermediate.ratio, default=None)
    what = f"{failed[0]}: {failed[1]}" if failed else run.skipped or ""
    if run.first_mismatch:
        what = element_line(run.first_mismatch)
    broken = [identity.name for identity in identities(run).values() if not identity.holds]
    what = "; ".join(filter(None, (what, f"broken: {', '.join(broken)}" if broken else "")))
    told = f"{ratio(worst.ratio)}x in {worst.title}" if worst else ""
    names: dict[str, list[str]] = {MISMATCH: [], INHERITED: []}
    for one in run.intermediates:
        names.setdefault(one.status, []).append(one.title)
    own, inherited = ", ".join(names[MISMATCH]), ", ".join(names[INHERITED])
    where = where if run.verdict in (MISMATCH, FAILED, CRASHED) else ""
    return TableRow(run.verdict, worst.ratio if worst else 0.0, (check, run.layout, own, inherited, told, what, where))


def _row(row: TableRow) -> str:
    verdict = row.verdict if row.verdict in ("match", SKIPPED) else f"**{row.verdict}**"
    return f"| {verdict} | {' | '.join(_plain(cell) for cell in row.cells)} |\n"


def _plain(text: str) -> str:
    """Text in which Markdown and HTML find nothing of theirs, in one line."""
    escaped = _MARKUP.sub(lambda found: f"&#{ord(found[0])};", visible(text))
    return escaped.replace("\n", "<br>")
