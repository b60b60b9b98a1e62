"""Excerpts: numbers around an element, one intermediate close up, and the lines of a cause."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from rich.text import Text

from ..model.number import Number, in_words, plural, spans
from ..model.report import CONSISTENT, NAMED, UNTRIED, Diagnosis, Report, Where
from ..model.run import MISMATCH, CloseUp, Element
from .places import Base, base_of
from .text import CAUTION, STYLES, ratio, value


def window(place: Element, width: int, *, one_row: bool = False) -> Iterator[Text]:
    """The numbers around an element, actual above expected, it in brackets; or those of its row alone."""
    around = place.window
    if around is None:
        return
    cells = max(1, min(len(around.cols), (width - 22) // 12))
    first = max(0, min(around.cols.index(place.col or 0) - cells // 2, len(around.cols) - cells))
    cols = around.cols[first : first + cells]
    yield Text(" " * 21 + "".join(f"{f'col {col}':>12}" for col in cols), "dim")
    for at, row in enumerate(around.rows):
        if one_row and row != (place.row or 0):
            continue
        for label, numbers in (("actual", around.actual[at]), ("expected", around.expected[at])):
            head = f"  row {row:<6}" if label == "actual" else " " * 12
            text = Text(f"{head}{label:>9}")
            for col, number in zip(cols, numbers[first : first + cells], strict=True):
                here = row == (place.row or 0) and col == (place.col or 0)
                written = f"[{value(number)}]" if here else f"{value(number)} "
                text.append(f"{written:>12}", STYLES[MISMATCH] if here and label == "actual" else "")
            text.rstrip()
            yield text


# From each ratio on: within budget, over it, over ten times, over a hundred, over a thousand.
_SCALE = (0.0, 1.0, 10.0, 100.0, 1000.0)
_UTF8 = "·░▒▓█"
_ASCII = ".-+*#"
_MOST_ROWS = 10


def render_close_up(view: CloseUp, width: int, *, utf8: bool = True) -> list[Text]:
    """The close-up as lines that fit `width`."""
    return [
        Text(f"layout {view.layout}", "dim"),
        *_head(view),
        Text(),
        *_map(view, width, _UTF8 if utf8 else _ASCII),
        Text(),
        *_rows(view),
        Text(),
        *window(view.element, width),
    ]


def _head(view: CloseUp) -> Iterator[Text]:
    where = f"batch {view.batch}, head {view.head}" if view.batch is not None else f"head {view.head}"
    elements, is_wrong = plural(view.total, "element"), view.mismatched > 0
    state = f"{view.mismatched:,} of {elements} wrong" if is_wrong else f"all {elements} within budget"
    yield Text.assemble((view.intermediate, "bold"), f"  {where}: ", (state, STYLES[MISMATCH] if is_wrong else "green"))


def _map(view: CloseUp, width: int, signs: str) -> Iterator[Text]:
    rows, cols = view.tile
    cells = _fitted(view.map, max(1, width - 14))
    step = -(-len(view.map[0]) // max(len(cells[0]), 1))
    yield Text(f"  worst error of each {rows} x {min(cols * step, view.shape[1])} tile, rows downwards", "dim")
    for at, line in enumerate(cells):
        text = Text(f"  row {at * rows:<6}")
        for cell in line:
            text.append(_sign(cell, signs), STYLES[MISMATCH] if cell is not None and cell > 1 else "")
        yield text
    words = ("within budget", "over it", "over 10x", "over 100x", "over 1000x")
    yield Text("  " + "   ".join(f"{sign} {word}" for sign, word in zip(signs, words, strict=True)), "dim")


def _fitted(cells: Sequence[Sequence[Number | None]], most: int) -> list[list[Number | None]]:
    """Neighbouring columns pooled until they fit."""
    step = -(-len(cells[0]) // most)
    return [[_worst(line[first : first + step]) for first in range(0, len(line), step)] for line in cells]


def _worst(cells: Sequence[Number | None]) -> Number | None:
    return max((cell for cell in cells if cell is not None), default=None)


def _sign(cell: Number | None, signs: str) -> str:
    return " " if cell is None else signs[sum(cell > least for least in _SCALE[1:])]


def _rows(view: CloseUp) -> Iterator[Text]:
    if view.mismatched:
        yield Text(
            f"  wrong rows: {in_words(spans(row.row for row in view.rows))} ({len(view.rows)} of {view.shape[0]})"
        )
    yield Text(f"  {'row':>6}{'wrong':>8}{'worst col':>11}{'actual':>13}{'expected':>13}{'ratio':>9}", "dim")
    for row in view.rows[:_MOST_ROWS]:
        yield Text(
            f"  {row.row:>6}{row.mismatched:>8}{row.col:>11}{value(row.actual):>13}{value(row.expected):>13}"
            f"{ratio(float('inf') if row.ratio is None else row.ratio) + 'x':>9}"
        )
    if len(view.rows) > _MOST_ROWS:
        yield Text(f"  {len(view.rows) - _MOST_ROWS} more wrong rows", "dim")


# Lines of one diagnosis that are shown; the others are in the JSON.
_MOST_LINES = 4
_STYLE = "bold red"


def render_reasons(report: Report, width: int) -> Iterator[Text]:
    """The best diagnosis and the runner-up; else what is known of the error."""
    if not report.diagnoses and not report.known:
        return
    first, base = (report.diagnoses or (None,))[0], base_of(report)
    if first is not None and first.explained >= NAMED:
        yield from _cause("CAUSE", first, base, width)
        for other in report.causes[1:]:
            yield from _cause("AND ALSO", other, base, width)
    elif first is not None and first.explained >= CONSISTENT:
        yield from _cause("CONSISTENT WITH", first, base, width)
    else:
        untried = bool(report.known) and report.known[0].startswith(UNTRIED)
        words, more = ("NO CAUSE SOUGHT", ":") if untried else ("NO HYPOTHESIS FITS", "; what is known:")
        yield Text.assemble((words, f"bold {CAUTION}"), more)
    yield from (line for sentence in report.known for line in _folded(sentence, width))


def _cause(word: str, diagnosis: Diagnosis, base: Base, width: int) -> Iterator[Text]:
    sentence = f"{diagnosis.summary} ({diagnosis.fault})"
    first, *rest = textwrap.wrap(sentence, max(width, 40) - len(word) - 2)
    yield Text.assemble((word, _STYLE), f"  {first}")
    yield from (Text(f"  {line}") for line in rest)
    yield from (line for evidence in diagnosis.evidence for line in _folded(evidence, width))
    yield from _lines(diagnosis.where, base, width)
    if diagnosis.fix:
        yield from _folded(f"fix: {diagnosis.fix}", width)


def _lines(wheres: Sequence[Where], base: Base, width: int) -> Iterator[Text]:
    """Each line with its places, the wrong part underlined; the first among its neighbours."""
    groups: dict[tuple[str, int | None, str], list[Where]] = {}
    for where in wheres:
        groups.setdefault((where.code, where.column, where.file), []).append(where)
    for number, group in enumerate(list(groups.values())[:_MOST_LINES]):
        yield from _folded(_places(group, base), width)
        yield from _line(group[0], width, among=number == 0)
    if len(groups) > _MOST_LINES:
        yield Text(f"  and {plural(len(groups) - _MOST_LINES, 'line')} more, in --json FILE")


def _places(group: Sequence[Where], base: Base) -> str:
    """`lazy.py:145 in lazy_dq_kernel, 203 in lazy_dkdv_kernel`, of lines that say the same."""
    lines = [f"{where.line} in {where.kernel}" if where.kernel else str(where.line) for where in group]
    return f"{base.short(group[0].file)}:{', '.join(lines)}"


def _line(where: Where, width: int, *, among: bool) -> Iterator[Text]:
    before, after = where.around
    indent, room = "      ", max(width, 40) - 6
    if among and before:
        yield Text(indent + _cut(before, room), "dim")
    margin = where.margin if among else 0
    own = indent + " " * margin
    yield Text(own + _cut(where.code, room - margin))
    yield from (Text(own + line, _STYLE) for line in _caret(where, room - margin))
    if among and after:
        yield Text(indent + _cut(after, room), "dim")


def _caret(where: Where, room: int) -> list[str]:
    """A caret under what is wrong, and beside or below it what stands there."""
    if where.column is None or where.column + where.length > room:
        return textwrap.wrap(where.note, room)
    caret = " " * where.column + "^" * max(1, where.length)
    beside = f"{caret} {where.note}".rstrip()
    return [beside] if len(beside) <= room else [caret, *textwrap.wrap(where.note, room)]


def _cut(code: str, room: int) -> str:
    return code if len(code) <= room else code[: room - 3] + "..."


def _folded(sentence: str, width: int) -> list[Text]:
    lines = textwrap.wrap(sentence, max(width, 40), initial_indent="  ", subsequent_indent="    ")
    return [Text(line) for line in lines]
