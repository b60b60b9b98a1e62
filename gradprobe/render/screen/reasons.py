"""Why: the causes with their lines and edits, on one screen or in full; else what is known."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.text import Text

from ...model.number import plural
from ...model.report import CONSISTENT, CauseLine, Diagnosis, Report, TriedEdit, passing_edit
from ..notation import CAUTION
from ..rows import folded, headed_in, lines_of, short
from ..source_places import Base, base_of
from .code import changes, excerpt
from .notes import FACTS, facts_of, in_short

_BAD = "bold red"
# Lines of one cause that are shown in full; the others are in the JSON.
_MOST_LINES = 4


def named_causes(report: Report) -> list[tuple[str, Diagnosis]]:
    """What is told as the cause, each with the word before it: the causes, else what came is consistent with."""
    words = ["CAUSE", *["AND ALSO"] * len(report.causes)]
    if report.causes:
        return list(zip(words, report.causes, strict=False))
    return [
        ("CONSISTENT WITH", one) for one in report.diagnoses[:1] if one.explained >= CONSISTENT
    ]


def render_reasons(report: Report, width: int) -> Iterator[Text]:
    """All causes with their evidence, their lines and their edits, and what else is known."""
    base, named = base_of(report), named_causes(report)
    for head, cause in named:
        yield from _long(f"{head}  {cause.summary} ({cause.fault})", len(head), _BAD, width)
        for sentence in cause.evidence:
            yield from folded(sentence, width)
        yield from _lines(cause.where, base, width)
        if cause.fix and not cause.is_certain:
            yield from folded(f"fix: {cause.fix}", width)
        if cause.edit is not None:
            yield from _edit(cause.edit, cause, base, width)
    if not named:
        yield from _unnamed(report)
    for sentence in report.known:
        yield from folded(sentence, width)


def _long(words: str, head: int, style: str, width: int) -> list[Text]:
    """Words in as many lines as they take, of which so many letters begin the first."""
    first, *rest = lines_of(words, max(width, 40))
    line = Text(first)
    line.stylize(style, 0, head)
    return [line, *(Text(f"  {more}") for more in rest)]


def _lines(wheres: Sequence[CauseLine], base: Base, width: int) -> Iterator[Text]:
    """Each line of a cause once, with its places."""
    groups: dict[tuple[str, int | None, str], list[CauseLine]] = {}
    for where in wheres:
        groups.setdefault((where.code, where.column, where.file), []).append(where)
    for group in list(groups.values())[:_MOST_LINES]:
        yield from excerpt(group, base, width)
    if len(groups) > _MOST_LINES:
        yield Text(f"  and {plural(len(groups) - _MOST_LINES, 'line')} more, in --json FILE")


def _edit(edit: TriedEdit, cause: Diagnosis, base: Base, width: int) -> Iterator[Text]:
    """What was tried, as a diff where anything helped."""
    if not edit.diff:
        yield from folded(f"{edit.words} ({edit.seconds:.0f} s)", width)
        return
    head, style = _edit_head(edit)
    certain = ": the cause is certain" if edit.is_certain else ""
    words = f"{head}: {edit.words} ({plural(edit.tried, 'edit')} tried, {edit.seconds:.0f} s){certain}"
    yield from _long(words, len(head) + 1, style, width)
    yield from changes(edit, cause.where[0].file if cause.where else "", base, width)
    for sentence in (
        *edit.reservations,
        *edit.limits,
        *(f"so does another: {other}" for other in edit.others),
    ):
        yield from folded(sentence, width)


def _edit_head(edit: TriedEdit) -> tuple[str, str]:
    """What an edit that changes anything is called, and in which style."""
    if edit.is_certain:
        return "FIX, tried", "bold green"
    return "MATCHES HERE, tried" if edit.matches else "CLOSEST EDIT, tried", f"bold {CAUTION}"


def _unnamed(report: Report) -> Iterator[Text]:
    if report.diagnoses or report.known:
        words, more = (
            ("NO HYPOTHESIS FITS", "; what is known:")
            if report.sought
            else ("NO CAUSE SOUGHT", ":")
        )
        yield Text.assemble((words, f"bold {CAUTION}"), more)


def cause_lines(report: Report, width: int) -> Iterator[Text]:
    """The first cause and its line; else what is known."""
    named = named_causes(report)
    if not named:
        yield from _unnamed(report)
        for sentence in facts_of(report)[:FACTS]:
            yield from short(sentence, width)
        return
    head, cause = named[0]
    yield from _summary(head, cause, width, 2)
    if cause.where:
        yield from excerpt(cause.where, base_of(report), width)


def _summary(head: str, cause: Diagnosis, width: int, rows: int) -> list[Text]:
    """The sentence of a cause, and its key where that takes no row of its own."""
    sentence = in_short(cause.summary)
    alone = headed_in(f"{head} ", _BAD, sentence, width, rows)
    with_key = headed_in(f"{head} ", _BAD, f"{sentence} ({cause.fault})", width, rows)
    return with_key if len(with_key) == len(alone) else alone


def edit_lines(report: Report, width: int) -> Iterator[Text]:
    """The edit that was tried, as a diff; else the one that the cause asks for, in words."""
    cause = next(iter(report.causes or report.diagnoses[:1]), None)
    if cause is None:
        return
    edit = cause.edit if cause.edit is not None and cause.edit.diff else passing_edit(report)
    if edit is None:
        yield from headed_in("FIX ", f"bold {CAUTION}", cause.fix, width) if cause.fix else ()
        yield from short(cause.edit.words, width) if cause.edit is not None else ()
        return
    head, style = _edit_head(edit)
    yield from headed_in(f"{head}:", style, "; ".join(edit.reservations) or edit.words, width)
    yield from changes(edit, cause.where[0].file if cause.where else "", base_of(report), width)
    for other in edit.others:
        yield from short(f"so does another: {other}", width, 1)


def second_cause(report: Report, width: int) -> Iterator[Text]:
    """The second cause in two lines."""
    if len(report.causes) < 2:
        return
    _, second, *others = report.causes
    yield from _summary("AND ALSO", second, width, 1)
    where = (
        f"{base_of(report).short(second.where[0].file)}:{second.where[0].place}: "
        if second.where
        else ""
    )
    more = f" (and {plural(len(others), 'cause')} more)" if others else ""
    yield from short(
        f"{where}{second.fix or (second.where[0].code if second.where else '')}{more}", width, 1
    )
