"""A Markdown table of reports, for the summary of a GitHub step: a row a finding, the worst first."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from ..model.documents import Reports
from ..model.layout_run import FAILED, INCOMPLETE, MATCH, MISMATCH
from ..model.number import plural
from ..model.report import Report, TriedEdit, passing_edit
from ..model.writing import visible
from .alerts import Alert, alerts_of
from .notation import edit_name, errors_of, so_far, told_apart
from .source_places import Base, base_of

# GitHub drops a summary that is larger.
MOST_BYTES = 2**20
_SAID = {MISMATCH: "wrong", FAILED: "not checked", INCOMPLETE: "not finished", MATCH: "right"}
_HEAD = "| level | check | finding | where |\n|--|--|--|--|\n"
# Signs of Markdown, HTML, mentions, issues, emoji and links.
_MARKUP = re.compile(r"[\\`*_{}\[\]()<>#+!|&~$@:]|(?<=www)\.")


def text(several: Reports, code: int | None, most: int = MOST_BYTES) -> str:
    """The document; as long as the command runs, with a check that is not finished."""
    return as_markdown(so_far(several, code), base_of(several), most)


def as_markdown(reports: Sequence[Report], base: Base, most: int = MOST_BYTES) -> str:
    """A heading, a table, and the commands that repeat what does not match, in `most` bytes of UTF-8 at most.

    Where that is too little, the rows at the end are left out, and the last line says how many; "" where not even the
    heading has room.
    """
    reports = told_apart(reports)
    rows = [_row(alert, base) for alert in alerts_of(reports)]
    tail = ["\n"]
    for report in reports:
        if errors_of(report).verdict != MATCH and report.reproduce:
            tail.append(f"again: <code>{_plain(report.reproduce)}</code><br>\n")
        elif not report.is_warning:
            words = "right in " + plural(len(report.measured), "layout")
            rows.append(f"| match | {_plain(report.name)} | {words} | |\n")
        if (edit := passing_edit(report)) is not None:
            tail.append(_edit(report, edit))
    return _within(_heading(reports) + _HEAD, rows, tail, most)


def _row(alert: Alert, base: Base) -> str:
    level = alert.level if alert.level in ("none", "note") else f"**{alert.level}**"
    where = base.shorten(alert.places[0]) if alert.places else ""
    first = [line for line in alert.sentences[2:] if line.startswith("FIRST ")]
    found = _plain("\n".join([*alert.sentences[:2], *first]))
    return f"| {level} | {_plain(alert.check)} | {found} | {_plain(where)} |\n"


def _edit(report: Report, edit: TriedEdit) -> str:
    """The edit that was tried as a block of code, in a fence that nothing in it closes."""
    fence = "~" * max([3, *(len(run) + 1 for run in re.findall("~+", edit.diff))])
    words = _plain(f"{edit_name(edit)} of {report.name}, tried: {edit.words}")
    return f"\n{words}\n\n{fence}diff\n{visible(edit.diff)}\n{fence}\n"


def _heading(reports: Sequence[Report]) -> str:
    verdicts = Counter(report.verdict for report in reports if not report.is_warning)
    words = [f"{verdicts[word]} {said}" for word, said in _SAID.items() if verdicts[word]]
    if warned := sum(len(report.warnings) for report in reports):
        words.append(f"{warned} warned of")
    return f"### gradprobe: {plural(len(reports), 'check')}, {', '.join(words)}\n\n"


def _within(head: str, rows: Sequence[str], tail: Sequence[str], most: int) -> str:
    """As many rows as there is room for, and then as much of the tail."""
    text, left = head, most - len(head.encode()) - 120  # the last line's own length
    if left < 0:
        return ""
    for at, line in enumerate((*rows, *tail)):
        left -= len(line.encode())
        if left < 0:
            rest = len(rows) - at
            said = f"{plural(rest, 'row')} more" if rest > 0 else "Some commands"
            return f"{text}\n{said} left out: a summary holds {most:,} bytes at most.\n"
        text += line
    return text


def _plain(text: str) -> str:
    """Text in which Markdown and HTML find nothing of theirs, in one line."""
    escaped = _MARKUP.sub(lambda found: f"&#{ord(found[0])};", visible(text))
    return escaped.replace("\n", "<br>")
