"""Why: the causes with their lines and edits, on one screen or in full; else what is known."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from ..model.number import plural
from ..model.report import CONSISTENT, CauseLine, Diagnosis, Report, TriedEdit, passing_edit
from .excerpts import EditDiff, Excerpt
from .notation import BAD, CAUTION, GOOD, edit_name
from .notes import facts_of, in_short
from .report_blocks import ReportBlock, TextLine, Words, lines_in, sentences
from .rows import ALL
from .source_places import base_of

FACTS = 3
"""Sentences about an error without a cause that one screen shows."""
# Lines of one cause that are shown in full; the others are in the JSON.
_MOST_LINES = 4


def named_causes(report: Report) -> list[tuple[str, Diagnosis]]:
    """What is told as the cause, each with the word before it: the causes, else what came is consistent with."""
    if report.causes:
        words = ["CAUSE", *["AND ALSO"] * len(report.causes)]
        return list(zip(words, report.causes, strict=False))
    consistent = [one for one in report.diagnoses[:1] if one.explained >= CONSISTENT]
    return [("CONSISTENT WITH", one) for one in consistent]


def render_reasons(report: Report, width: int) -> list[Text]:
    """All causes with their evidence, their lines and their edits, and what else is known."""
    return lines_in(reasons(report), width)


def reasons(report: Report) -> Iterator[ReportBlock]:
    named = named_causes(report)
    for head, cause in named:
        yield Words(f"{cause.summary} ({cause.fault})", head, BAD)
        yield from sentences(cause.evidence)
        excerpts = excerpts_of(report, cause)
        yield from excerpts[:_MOST_LINES]
        if len(excerpts) > _MOST_LINES:
            yield Words(f"and {plural(len(excerpts) - _MOST_LINES, 'line')} more, in --json FILE")
        if cause.fix and not cause.is_certain:
            yield Words(f"fix: {cause.fix}")
        if cause.edit is not None:
            yield from _edit_in_full(report, cause, cause.edit)
    if not named:
        yield from _unnamed(report)
    yield from sentences(report.known)


def excerpts_of(report: Report, cause: Diagnosis) -> list[Excerpt]:
    """Each line of a cause once, with its places."""
    groups: dict[tuple[str, int | None, str], list[CauseLine]] = {}
    for where in cause.where:
        groups.setdefault((where.code, where.column, where.file), []).append(where)
    base = base_of(report)
    return [Excerpt(alike, base, report.listings) for alike in groups.values()]


def cause_in_short(report: Report, width: int) -> Iterator[ReportBlock]:
    """The first cause and its line; else what is known."""
    if named := named_causes(report):
        head, cause = named[0]
        yield _summary(head, cause, width, 2)
        yield from excerpts_of(report, cause)[:1]
    else:
        yield from _unnamed(report)
        yield from sentences(facts_of(report)[:FACTS], rows=2)


def edit_in_short(report: Report) -> Iterator[ReportBlock]:
    """The edit that was tried, as a diff; else the one that the cause asks for, in words."""
    cause = next(iter(report.causes or report.diagnoses[:1]), None)
    if cause is None:
        return
    edit = cause.edit if cause.edit is not None and cause.edit.diff else passing_edit(report)
    if edit is not None:
        yield _tried(edit, "; ".join(edit.reservations) or edit.words, 2)
        yield _changes(report, cause, edit)
        yield from sentences((f"so does another: {other}" for other in edit.others), rows=1)
        return
    if cause.fix:
        yield Words(cause.fix, "FIX", f"bold {CAUTION}", rows=2)
    if cause.edit is not None:
        yield Words(cause.edit.words, rows=2)


def second_cause(report: Report, width: int) -> Iterator[ReportBlock]:
    """The second cause in two lines."""
    if len(report.causes) < 2:
        return
    _, second, *others = report.causes
    yield _summary("AND ALSO", second, width, 1)
    words = second.fix
    if second.where:
        first = second.where[0]
        words = f"{base_of(report).short(first.file)}:{first.place}: {words or first.code}"
    more = f" (and {plural(len(others), 'cause')} more)" if others else ""
    yield Words(f"{words}{more}", rows=1)


def _summary(head: str, cause: Diagnosis, width: int, rows: int) -> Words:
    """The sentence of a cause, and its key where that takes no row of its own."""
    sentence = in_short(cause.summary)
    alone = Words(sentence, head, BAD, rows)
    with_key = Words(f"{sentence} ({cause.fault})", head, BAD, rows)
    return with_key if len(with_key.lines(width)) == len(alone.lines(width)) else alone


def _unnamed(report: Report) -> Iterator[ReportBlock]:
    if report.diagnoses or report.known:
        words = ("NO HYPOTHESIS FITS", "; what is known:")
        words = words if report.sought else ("NO CAUSE SOUGHT", ":")
        yield TextLine(Text.assemble((words[0], f"bold {CAUTION}"), words[1]))


def _edit_in_full(report: Report, cause: Diagnosis, edit: TriedEdit) -> Iterator[ReportBlock]:
    """What was tried, as a diff where anything helped."""
    if not edit.diff:
        yield Words(f"{edit.words} ({edit.seconds:.0f} s)")
        return
    certain = ": the cause is certain" if edit.is_certain else ""
    took = f"{plural(edit.tried, 'edit')} tried, {edit.seconds:.0f} s"
    yield _tried(edit, f"{edit.words} ({took}){certain}", ALL)
    yield _changes(report, cause, edit)
    others = (f"so does another: {other}" for other in edit.others)
    yield from sentences((*edit.reservations, *edit.limits, *others))


def _tried(edit: TriedEdit, words: str, rows: int) -> Words:
    style = GOOD if edit.is_certain else f"bold {CAUTION}"
    return Words(words, f"{edit_name(edit).upper()}, tried:", style, rows)


def _changes(report: Report, cause: Diagnosis, edit: TriedEdit) -> EditDiff:
    return EditDiff(edit, base_of(report), cause.where[0].file if cause.where else "")
