"""Rows of a terminal: how words fold into them, and how sections come to fit a number of them."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from rich.console import Console, RenderableType
from rich.text import Text

from ..model.number import plural

MOST, MOST_OF_A_MATCH = 24, 10
"""Rows on a terminal of 80 columns: of a report that fails, and of a match."""
COLUMNS = 80
ALL = 1000
"""More rows than any sentence takes."""


@dataclass(frozen=True)
class Section:
    """Lines that stand together, of which the last may be left out."""

    lines: Sequence[Text]
    least: int | None = None
    """How many stay, however little room there is; None for all."""
    noun: str = "line"
    """What a line is, to count those that are left out; "" where nobody misses them."""

    def cut(self, rows: int, width: int) -> Section:
        """The section in so many rows, or in its least lines: the last one says how many are left out."""
        lines, counted = list(self.lines), int(bool(self.noun))
        least = len(lines) if self.least is None else self.least
        if rows_of(lines, width) <= rows or len(lines) <= least + counted:
            return self
        while len(lines) > least and rows_of(lines, width) + counted > rows:
            lines.pop()
        if self.noun:
            left = plural(len(self.lines) - len(lines), self.noun)
            lines.append(Text(f"  and {left} more", "dim"))
        return replace(self, lines=lines)


def rows_of(lines: Iterable[Text], width: int) -> int:
    """How many rows lines take where a terminal folds those that are longer than it is wide."""
    return sum(max(1, -(-line.cell_len // max(width, COLUMNS))) for line in lines)


def fitted(sections: Sequence[Section], most: int, width: int) -> list[Text]:
    """The lines of all sections, in so many rows where their least lines allow it: the last give way first."""
    found = list(sections)
    for at in reversed(range(len(found))):
        over = sum(rows_of(one.lines, width) for one in found) - most
        if over > 0:
            found[at] = found[at].cut(rows_of(found[at].lines, width) - over, width)
    return [line for one in found for line in one.lines]


def short(words: str, width: int, rows: int = 2, indent: str = "  ") -> list[Text]:
    """Words in so many rows at most."""
    room = max(width, 40)
    lines = lines_of(words, room, initial_indent=indent, subsequent_indent=f"{indent}  ")
    if len(lines) > rows:
        last = lines_of(lines[rows - 1].strip(), room - len(indent) - 6)[0]
        lines = [*lines[: rows - 1], f"{indent}{'  ' * (rows > 1)}{last} ..."]
    return [Text(line) for line in lines]


def headed_in(head: str, style: str, words: str, width: int, rows: int = 2) -> list[Text]:
    """Words in so many rows at most, below a word that begins the first of them."""
    between = " " if head.endswith(":") else "  "
    first, *more = short(f"{head}{between}{words}", width, rows, indent="")
    first.stylize(style, 0, len(head))
    return [first, *more]


def headed(verdict: str, style: str, words: str, width: int) -> Iterator[Text]:
    """A verdict, and beside it what it is about in lines of a width."""
    first, *rest = lines_of(words, max(width, 40) - len(verdict) - 2)
    yield Text.assemble((verdict, style), f"  {first}")
    yield from (Text(" " * (len(verdict) + 2) + line) for line in rest)


def folded(sentence: str, width: int, style: str = "") -> list[Text]:
    """A sentence in lines of a width, indented."""
    return [Text(line, style) for line in wrapped(sentence, width)]


def wrapped(sentence: str, width: int) -> list[str]:
    return lines_of(sentence, max(width, 40), initial_indent="  ", subsequent_indent="    ")


def lines_of(words: str, width: int, **indents: str) -> list[str]:
    """Words in lines of a width, of which none ends inside a path or an option."""
    return textwrap.wrap(words, width, break_long_words=False, break_on_hyphens=False, **indents)  # type: ignore[arg-type]


def lines_from(shown: RenderableType, width: int) -> list[Text]:
    """What rich lays out in so many columns, as lines."""
    console = Console(width=width, file=io.StringIO(), color_system="truecolor")
    lines = []
    for segments in console.render_lines(shown, pad=False):
        line = Text.assemble(*((one.text, one.style or "") for one in segments))
        line.rstrip()
        lines.append(line)
    return lines
