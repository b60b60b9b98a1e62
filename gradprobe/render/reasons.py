"""Why: causes with their lines and edits; else what is known."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter

from rich.text import Text

from ..model.number import plural
from ..model.report import (
    CONSISTENT,
    CauseLine,
    Diagnosis,
    Replacement,
    Report,
    TriedEdit,
    passing_edit,
    replacements_of,
)
from .notation import BAD, CAUTION, GOOD, edit_name, group, in_short
from .rows import ALL, ReportBlock, TextLine, Words, lines_in, sentences
from .source_places import Base, base_of

# Lines of one cause that are shown in full; the others are in the JSON.
_MOST_LINES = 4
# Of what is wrong in a long line, as many characters stand around it at least.
_AROUND = 12
_CUT = " ..."
_MOST_PLACES, _MOST_FACTS = 4, 3


def named_causes(report: Report) -> list[tuple[str, Diagnosis]]:
    if causes := report.causes:
        return list(zip(["CAUSE", *["AND ALSO"] * (len(causes) - 1)], causes, strict=True))
    best = next(iter(report.diagnoses), None)
    return [("CONSISTENT WITH", best)] if best and best.explained >= CONSISTENT else []


def render_reasons(report: Report, width: int) -> list[Text]:
    return lines_in(reasons(report), width)


def reasons(report: Report) -> Iterator[ReportBlock]:
    for head, cause in (named := named_causes(report)):
        yield Words(f"{cause.summary} ({cause.fault})", head, BAD)
        yield from sentences(cause.evidence)
        yield from _excerpts_of(report, cause)[:_MOST_LINES]
        if cause.fix and not cause.is_certain:
            yield Words(f"fix: {cause.fix}")
        if cause.edit is not None:
            yield from _edit_in_full(cause, cause.edit)
    if not named:
        yield from _unnamed(report)
    yield from sentences(report.known)


def _excerpts_of(report: Report, cause: Diagnosis) -> list[Excerpt]:
    lines = group(cause.where, attrgetter("code", "column", "file"))
    base = base_of(report)
    return [Excerpt(alike, base) for alike in lines.values()]


def cause_in_short(report: Report, width: int) -> Iterator[ReportBlock]:
    for head, cause in (named := named_causes(report)[:1]):
        yield _summary(head, cause, width, 2)
        yield from _excerpts_of(report, cause)[:1]
    if not named:
        yield from _unnamed(report)
        # What was seen inside says more than what the results are.
        known = (*(report.failing.inside if report.failing else ()), *report.known)
        yield from sentences(known[:_MOST_FACTS], rows=2)


def edit_in_short(report: Report) -> Iterator[ReportBlock]:
    cause = next(iter(report.causes or report.diagnoses[:1]), None)
    if cause is None:
        return
    edit = cause.edit if cause.edit is not None and cause.edit.diff else passing_edit(report)
    if edit is not None:
        yield from _tried(cause, edit, "; ".join(edit.reservations) or edit.words, 2)
        return
    if cause.fix:
        yield Words(cause.fix, "FIX", f"bold {CAUTION}", rows=2)
    if cause.edit is not None:
        yield Words(cause.edit.words, rows=2)


def second_cause(report: Report, width: int) -> Iterator[ReportBlock]:
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
    sentence = in_short(cause.summary)
    alone = Words(sentence, head, BAD, rows)
    with_key = Words(f"{sentence} ({cause.fault})", head, BAD, rows)
    return with_key if len(with_key.lines(width)) == len(alone.lines(width)) else alone


def _unnamed(report: Report) -> Iterator[ReportBlock]:
    if report.diagnoses or report.known:
        words = ("NO HYPOTHESIS FITS", "; what is known:")
        words = words if report.sought else ("NO CAUSE SOUGHT", ":")
        yield TextLine(Text.assemble((words[0], f"bold {CAUTION}"), words[1]))


def _edit_in_full(cause: Diagnosis, edit: TriedEdit) -> Iterator[ReportBlock]:
    if not edit.diff:
        yield Words(f"{edit.words} ({edit.seconds:.0f} s)")
        return
    certain = ": the cause is certain" if edit.is_certain else ""
    took = f"{plural(edit.tried, 'edit')} tried, {edit.seconds:.0f} s"
    yield from _tried(cause, edit, f"{edit.words} ({took}){certain}", ALL)
    yield from sentences((*edit.reservations, *edit.limits))


def _tried(cause: Diagnosis, edit: TriedEdit, words: str, rows: int) -> Iterator[ReportBlock]:
    style = GOOD if edit.is_certain else f"bold {CAUTION}"
    yield Words(words, f"{edit_name(edit).upper()}, tried:", style, rows)
    yield EditDiff(edit, cause.where[0].file if cause.where else "")
    yield from sentences(map("so does another: {}".format, edit.others), rows=min(rows, 2))


@dataclass(frozen=True)
class Excerpt:
    """A line of a cause, once for all its places."""

    wheres: Sequence[CauseLine]
    base: Base

    def lines(self, width: int) -> Sequence[Text]:
        where = self.wheres[0]
        gutter = f"  {where.line} | "
        room = width - len(gutter)
        code, first = code_window(where.code, where.column or 0, where.length, room)
        place = Text(self.place(width), overflow="ignore")
        lines = [place, Text.assemble((gutter, "dim"), code)]
        if mark := _mark(where, first, room):
            lines.append(Text.assemble((f"{'| ':>{len(gutter)}}", "dim"), (mark, BAD)))
        return lines

    def place(self, width: int) -> str:
        where, also = self.wheres[0], _and_lines(self.wheres[1:])
        short = f"  {self.base.short(where.file)}:{where.place}"
        for words in (f"{short} ({also})" if also else short, short):
            if len(words) <= width:
                return words
        return f"  .../{os.path.basename(where.file)}:{where.line}"

    def listing(self) -> list[tuple[int, str, str, str]]:
        """Number and text of the line and its neighbours; the text in three, the second wrong."""
        where, (before, after) = self.wheres[0], self.wheres[0].around
        start, code = where.column or 0, where.code
        end, indent = start + where.length, " " * where.margin
        named = where.line, indent + code[:start], code[start:end], code[end:]
        return [(where.line - 1, before, "", ""), named, (where.line + 1, after, "", "")]


def _mark(where: CauseLine, first: int, room: int) -> str:
    if where.column is None:
        return textwrap.shorten(where.note, room, placeholder=_CUT)
    carets = " " * first + "^" * max(1, min(where.length, room - first))
    for note in (where.note, where.note.partition(";")[0]):
        if len(carets) + 1 + len(note) <= room:
            return f"{carets} {note}".rstrip()
    return carets


def _and_lines(others: Sequence[CauseLine | Replacement], most: int = 1000) -> str:
    more = f" and {len(others) - most} more" if len(others) > most else ""
    lines = ", ".join(str(other.line) for other in others[:most])
    return f"the same in line{'s' * (len(others) > 1)} {lines}{more}" if others else ""


def code_window(code: str, first: int, length: int, room: int) -> tuple[str, int]:
    """A line cut to the room around a part of it, and where that begins."""
    if len(code) <= room:
        return code, first
    if first + length > room - len(_CUT):
        start = max(0, min(first - _AROUND, len(code) - room + len(_CUT)))
        code, first = f"... {code[start:]}", first - start + len(_CUT)
    return (code if len(code) <= room else code[: room - len(_CUT)] + _CUT), first


@dataclass(frozen=True)
class EditDiff:
    edit: TriedEdit
    named: str = ""  # just above

    def lines(self, width: int) -> Sequence[Text]:
        alike: dict[tuple[str, ...], list[Replacement]] = {}
        for change in replacements_of(self.edit.diff):
            # The same change is one in places of unlike indents too.
            both = ("\n".join(map(str.strip, lines)) for lines in (change.old, change.new))
            alike.setdefault(tuple(both), []).append(change)
        is_named = os.path.realpath(self.edit.file) == os.path.realpath(self.named)
        file = "" if is_named else f" of {os.path.basename(self.edit.file)}"
        lines = list[Text]()
        for first, *others in alike.values():
            also = _and_lines(others, _MOST_PLACES)
            place = f"  @@ line {first.line}{file}{', and ' if also else ''}{also} @@"
            lines += [Text(place, "cyan"), *_changed_lines(first, width - 4)]
        return lines


def _changed_lines(change: Replacement, room: int) -> Iterator[Text]:
    whole = textwrap.dedent("\n".join([*change.old, *change.new])).split("\n")
    old, new = whole[: len(change.old)], whole[len(change.old) :]
    for sign, style, lines, others in (("-", "red", old, new), ("+", "green", new, old)):
        for at, line in enumerate(lines):
            other = others[at] if len(old) == len(new) else ""
            first = len(os.path.commonprefix((line, other)))
            yield Text(f"  {sign} {code_window(line, first, _AROUND, room)[0]}", style)
