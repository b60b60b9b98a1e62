"""Why, for people: the cause with its lines and its fix, or what is known where no hypothesis fits."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from rich.text import Text

from ..diagnosis import CONSISTENT, NAMED, Diagnosis, Where
from ..verdict import Report
from .paths import short

# Lines of one diagnosis that are shown; the others are in the JSON.
_MOST_LINES = 4
_STYLE = "bold red"


def render_reasons(report: Report, width: int) -> Iterator[Text]:
    """The best diagnosis and the runner-up; else what is known of the error."""
    if not report.diagnoses and not report.known:
        return
    first = report.diagnoses[0] if report.diagnoses else None
    if first is not None and first.explained >= NAMED:
        yield from _cause("CAUSE", first, width)
        for other in (other for other in report.diagnoses[1:] if other.also and other.explained >= NAMED):
            yield from _cause("AND ALSO", other, width)
    elif first is not None and first.explained >= CONSISTENT:
        yield from _cause("CONSISTENT WITH", first, width)
    else:
        yield Text.assemble(("NO HYPOTHESIS FITS", "bold yellow"), "; what is known:")
    yield from (line for sentence in report.known for line in _folded(sentence, width))


def _cause(word: str, diagnosis: Diagnosis, width: int) -> Iterator[Text]:
    sentence = f"{diagnosis.summary} ({diagnosis.fault})"
    first, *rest = textwrap.wrap(sentence, max(width, 40) - len(word) - 2)
    yield Text.assemble((word, _STYLE), f"  {first}")
    yield from (Text(f"  {line}") for line in rest)
    yield from (line for evidence in diagnosis.evidence for line in _folded(evidence, width))
    yield from _lines(diagnosis.where, width)
    if diagnosis.fix:
        yield from _folded(f"fix: {diagnosis.fix}", width)


def _lines(wheres: Sequence[Where], width: int) -> Iterator[Text]:
    """Each line with its place, the wrong part underlined; the first among its neighbours."""
    for number, where in enumerate(wheres[:_MOST_LINES]):
        yield from _line(where, width, among=number == 0)
    if len(wheres) > _MOST_LINES:
        yield Text(f"  and {len(wheres) - _MOST_LINES} more lines, in --json FILE")


def _line(where: Where, width: int, *, among: bool) -> Iterator[Text]:
    place = f"  {short(where.file)}:{where.line}"
    yield Text(f"{place} in {where.kernel}" if where.kernel else place, "cyan", overflow="ignore")
    before, after = where.around
    indent, room = "      ", max(width, 40) - 6
    if among and before:
        yield Text(indent + _cut(before, room), "dim")
    yield Text(indent + _cut(where.code, room))
    if where.column is not None and where.column + where.length <= room:
        carets = " " * where.column + "^" * max(1, where.length)
        note = f" {where.note}" if where.note else ""
        lines = textwrap.wrap(note.strip(), max(20, room - len(carets) - 1)) or [""]
        yield Text.assemble(indent, (carets, _STYLE), f" {lines[0]}" if lines[0] else "")
        yield from (Text(indent + " " * (len(carets) + 1) + line) for line in lines[1:])
    elif where.note:
        yield from _folded(where.note, width)
    if among and after:
        yield Text(indent + _cut(after, room), "dim")


def _cut(code: str, room: int) -> str:
    return code if len(code) <= room else code[: room - 3] + "..."


def _folded(sentence: str, width: int) -> list[Text]:
    lines = textwrap.wrap(sentence, max(width, 40), initial_indent="  ", subsequent_indent="    ")
    return [Text(line) for line in lines]
