"""Why, for people: the cause with its lines and its fix, or what is known where no hypothesis fits."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from rich.text import Text

from ..model.diagnosis import CONSISTENT, NAMED, Diagnosis, Where
from ..model.report import Report
from ..model.spans import plural
from .places import Base, base_of
from .text import CAUTION

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
        yield Text.assemble(("NO HYPOTHESIS FITS", f"bold {CAUTION}"), "; what is known:")
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
