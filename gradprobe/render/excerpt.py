"""Excerpts: numbers around an element, one intermediate close up, and the lines of a cause."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.text import Text

from ..model.layout_run import MISMATCH, CloseUp, Element
from ..model.number import Number, in_words, plural, spans
from ..model.report import CONSISTENT, Diagnosis, Report, TriedEdit, Where
from .notation import CAUTION, STYLES, folded, lines_of, place_in_words, ratio, value
from .source_places import Base, base_of


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


# Beyond each of these multiples of the budget another sign.
_OVER = (1.0, 10.0, 100.0, 1000.0)
UTF8_SIGNS = "·░▒▓█"
ASCII_SIGNS = ".-+*#"
_MOST_ROWS = 10


def render_close_up(view: CloseUp, width: int, *, utf8: bool = True) -> list[Text]:
    """The close-up as lines that fit `width`."""
    return [
        Text(f"layout {view.layout}", "dim"),
        *close_up_head(view),
        Text(),
        *close_up_map(view, width, UTF8_SIGNS if utf8 else ASCII_SIGNS),
        Text(),
        *close_up_rows(view),
        Text(),
        *window(view.element, width),
    ]


def close_up_head(view: CloseUp) -> Iterator[Text]:
    """The head, and how much of it is wrong."""
    elements, is_wrong = plural(view.total, "element"), view.mismatched > 0
    state = f"{view.mismatched:,} of {elements} wrong" if is_wrong else f"all {elements} within budget"
    styled = (state, STYLES[MISMATCH] if is_wrong else "green")
    yield Text.assemble((view.element.title, "bold"), f"  {place_in_words(view)}: ", styled)


def close_up_map(view: CloseUp, width: int, signs: str) -> Iterator[Text]:
    """A title, a line for each row of tiles, and what the signs mean."""
    rows, cols = view.tile
    step = -(-len(view.map[0]) // max(1, width - 14))  # columns are pooled until they fit
    yield Text(f"  worst error of each {rows} x {min(cols * step, view.shape[1])} tile, rows downwards", "dim")
    for at, line in enumerate(view.map):
        text = Text(f"  row {(view.lines[at] if view.lines else at) * rows:<6}")
        for cell in _pooled(line, step):
            sign = " " if cell is None else signs[sum(cell > least for least in _OVER)]
            text.append(sign, STYLES[MISMATCH] if cell is not None and cell > 1 else "")
        yield text
    words = ("within budget", "over it", "over 10x", "over 100x", "over 1000x")
    yield Text("  " + "   ".join(f"{sign} {word}" for sign, word in zip(signs, words, strict=True)), "dim")


def _pooled(line: Sequence[Number | None], step: int) -> list[Number | None]:
    """The worst of so many neighbours each."""
    parts = (line[first : first + step] for first in range(0, len(line), step))
    return [max((cell for cell in part if cell is not None), default=None) for part in parts]


def close_up_rows(view: CloseUp) -> Iterator[Text]:
    """Which rows are wrong, and the first of them with the worst element of each."""
    if view.mismatched:
        wrong = in_words(spans(row.row for row in view.rows))
        yield Text(f"  wrong rows: {wrong} ({len(view.rows)} of {view.shape[0]})")
    yield Text(f"  {'row':>6}{'wrong':>8}{'worst col':>11}{'actual':>13}{'expected':>13}{'ratio':>9}", "dim")
    for row in view.rows[:_MOST_ROWS]:
        times = ratio(float("inf") if row.ratio is None else row.ratio)
        stood = f"{value(row.actual):>13}{value(row.expected):>13}{times + 'x':>9}"
        yield Text(f"  {row.row:>6}{row.mismatched:>8}{row.col:>11}{stood}")
    if len(view.rows) > _MOST_ROWS:
        yield Text(f"  {len(view.rows) - _MOST_ROWS} more wrong rows", "dim")


# Lines of one diagnosis that are shown; the others are in the JSON.
_MOST_LINES = 4
_STYLE = "bold red"


def render_reasons(report: Report, width: int) -> Iterator[Text]:
    """The best diagnosis and the runner-up; else what is known of the error."""
    base, first = base_of(report), report.diagnoses[:1]
    for word, cause in zip(("CAUSE", *["AND ALSO"] * len(report.causes)), report.causes, strict=False):
        yield from _cause(word, cause, base, width)
    if not report.causes and first and first[0].explained >= CONSISTENT:
        yield from _cause("CONSISTENT WITH", first[0], base, width)
    elif not report.causes and (first or report.known):
        words, more = ("NO HYPOTHESIS FITS", "; what is known:") if report.sought else ("NO CAUSE SOUGHT", ":")
        yield Text.assemble((words, f"bold {CAUTION}"), more)
    yield from (line for sentence in report.known for line in folded(sentence, width))


def _cause(word: str, diagnosis: Diagnosis, base: Base, width: int) -> Iterator[Text]:
    sentence = f"{diagnosis.summary} ({diagnosis.fault})"
    first, *rest = lines_of(sentence, max(width, 40) - len(word) - 2)
    yield Text.assemble((word, _STYLE), f"  {first}")
    yield from (Text(f"  {line}") for line in rest)
    yield from (line for evidence in diagnosis.evidence for line in folded(evidence, width))
    yield from _lines(diagnosis.where, base, width)
    if diagnosis.fix and not diagnosis.is_certain:
        yield from folded(f"fix: {diagnosis.fix}", width)
    if diagnosis.edit is not None:
        yield from render_edit(diagnosis.edit, width)


# Lines of a diff that are shown: with the verdict and the cause they fill a screen. The others are in the JSON.
_MOST_OF_A_DIFF = 36
_DIFF_STYLES = {"+": "green", "-": "red", "@": "cyan"}


def render_edit(edit: TriedEdit, width: int) -> Iterator[Text]:
    """What was tried, as a diff where anything helped."""
    count = f"{plural(edit.tried, 'edit')} tried, {edit.seconds:.0f} s"
    if not edit.diff:
        yield from folded(f"{edit.words} ({edit.seconds:.0f} s)", width)
        return
    head, style = edit_head(edit)
    certain = ": the cause is certain" if edit.is_certain else ""
    first, *rest = lines_of(f"{edit.words} ({count}){certain}", max(width, 40) - len(head) - 2)
    yield Text.assemble((f"{head}: ", style), first)
    yield from (Text(f"  {line}") for line in rest)
    lines = edit.diff.splitlines()
    yield from (Text(f"  {line}", _DIFF_STYLES.get(line[:1], "dim")) for line in lines[:_MOST_OF_A_DIFF])
    if len(lines) > _MOST_OF_A_DIFF:
        yield Text(f"  {plural(len(lines) - _MOST_OF_A_DIFF, 'line')} more of the diff, in --json FILE", "dim")
    yield from (line for words in (*edit.reservations, *edit.limits) for line in folded(words, width))
    yield from (line for other in edit.others for line in folded(f"so does another: {other}", width))


def edit_head(edit: TriedEdit) -> tuple[str, str]:
    """What an edit that changes anything is called, and in which style."""
    matches = "FIX, tried" if edit.is_certain else "MATCHES HERE, tried"
    head = matches if edit.matches else "CLOSEST EDIT, tried"
    return head, "bold green" if edit.is_certain else f"bold {CAUTION}"


def _lines(wheres: Sequence[Where], base: Base, width: int) -> Iterator[Text]:
    """Each line with its places, the wrong part underlined; the first among its neighbours."""
    groups: dict[tuple[str, int | None, str], list[Where]] = {}
    for where in wheres:
        groups.setdefault((where.code, where.column, where.file), []).append(where)
    for number, group in enumerate(list(groups.values())[:_MOST_LINES]):
        # `lazy.py:145 in lazy_dq_kernel, 203 in lazy_dkdv_kernel`, of lines that say the same.
        yield from folded(f"{base.short(group[0].file)}:{', '.join(where.place for where in group)}", width)
        yield from _line(group[0], width, among=number == 0)
    if len(groups) > _MOST_LINES:
        yield Text(f"  and {plural(len(groups) - _MOST_LINES, 'line')} more, in --json FILE")


def _line(where: Where, width: int, *, among: bool) -> Iterator[Text]:
    """The line, with what is wrong in it marked; where asked for among its neighbours."""

    def cut(code: str, room: int) -> str:
        return code if len(code) <= room else code[: room - 3] + "..."

    (before, after), margin = (where.around, where.margin) if among else (("", ""), 0)
    indent, room = "      ", max(width, 40) - 6
    own = indent + " " * margin
    yield from (Text(indent + cut(line, room), "dim") for line in (before,) if line)
    yield Text(own + cut(where.code, room - margin))
    yield from (Text(own + line, _STYLE) for line in _caret(where, room - margin))
    yield from (Text(indent + cut(line, room), "dim") for line in (after,) if line)


def _caret(where: Where, room: int) -> list[str]:
    """A caret under what is wrong, and beside or below it what stands there."""
    if where.column is None or where.column + where.length > room:
        return lines_of(where.note, room)
    caret = " " * where.column + "^" * max(1, where.length)
    beside = f"{caret} {where.note}".rstrip()
    return [beside] if len(beside) <= room else [caret, *lines_of(where.note, room)]
