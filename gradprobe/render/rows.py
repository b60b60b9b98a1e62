"""Blocks of a report: a page lays them out, a terminal folds them into rows."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from ..model.number import plural

MOST, MOST_OF_A_MATCH = 24, 10
COLUMNS = 80
ALL = 1000


class ReportBlock(Protocol):
    def lines(self, width: int) -> Sequence[Text]: ...


@dataclass(frozen=True)
class Title:
    text: str

    def lines(self, _: int) -> Sequence[Text]:
        return [Text()]


@dataclass(frozen=True)
class Words:
    text: str
    head: str = ""
    style: str = ""
    rows: int = ALL
    hangs: bool = False

    def lines(self, width: int) -> Sequence[Text]:
        if self.head:
            return headed(self.head, self.style, self.text, width, self.rows, hangs=self.hangs)
        return folded(self.text, width, self.style, self.rows)


@dataclass(frozen=True)
class TextLine:
    text: Text

    def lines(self, _: int) -> Sequence[Text]:
        return [self.text]


@dataclass(frozen=True)
class CommandLine:
    text: str

    def lines(self, _: int) -> Sequence[Text]:
        return [Text(f"  again: {self.text}", overflow="ignore")]


@dataclass(frozen=True)
class CellGrid:
    """Rows of cells, the first dim; `left` columns to the left, the others to the right."""

    rows: Sequence[Sequence[str | Text]]
    left: int = 1
    least: int = 0

    def lines(self, _: int) -> Sequence[Text]:
        table = Table(box=None, show_header=False, padding=(0, 0, 0, 2))
        for at in range(len(self.rows[0])):
            if at < self.left:
                table.add_column(no_wrap=True)
            else:
                table.add_column(justify="right", min_width=self.least, no_wrap=True)
        for at, row in enumerate(self.rows):
            table.add_row(*row, style="" if at else "dim")
        return lines_from(table, 10_000)


def sentences(texts: Iterable[str], rows: int = ALL) -> Iterator[Words]:
    for text in texts:
        yield Words(text, rows=rows)


def lines_in(blocks: Iterable[ReportBlock], width: int) -> list[Text]:
    lines = list[Text]()
    for block in blocks:
        lines += block.lines(width)
    return lines


@dataclass(frozen=True)
class Section:
    lines: Sequence[Text]
    least: int | None = None  # None for all
    noun: str = "line"

    def cut(self, rows: int, width: int) -> Section:
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
    return sum(max(1, -(-line.cell_len // max(width, COLUMNS))) for line in lines)


def fitted(sections: Sequence[Section], most: int, width: int) -> list[Text]:
    """The last sections give way first."""
    lines, after = list[Text](), 0
    for at, section in reversed(list(enumerate(sections))):
        before = sum(rows_of(one.lines, width) for one in sections[:at])
        shown = section.cut(most - before - after, width).lines
        lines[:0], after = shown, after + rows_of(shown, width)
    return lines


def folded(words: str, width: int, style: str = "", rows: int = ALL) -> list[Text]:
    return _folded(words, width, rows, "  ", "    ", style)


def headed(
    head: str, style: str, words: str, width: int, rows: int = ALL, *, hangs: bool = True
) -> list[Text]:
    between = " " if head.endswith(":") else "  "
    indent = " " * (len(head) + len(between)) if hangs else "  "
    lines = _folded(words, width, rows, f"{head}{between}", indent) or [Text(head)]
    lines[0].stylize(style, 0, len(head))
    return lines


def _folded(
    words: str, width: int, rows: int, first: str, indent: str, style: str = ""
) -> list[Text]:
    room = max(width, 40)
    lines = lines_of(words, room, initial_indent=first, subsequent_indent=indent)
    if len(lines) > rows:
        prefix = indent if rows > 1 else first
        last = lines_of(lines[rows - 1].removeprefix(prefix).strip(), room - len(prefix) - 4)[0]
        lines[rows - 1 :] = [f"{prefix}{last} ..."]
    return [Text(line, style) for line in lines]


def lines_of(words: str, width: int, **indents: str) -> list[str]:
    """No line ends inside a path or an option."""
    return textwrap.wrap(words, width, break_long_words=False, break_on_hyphens=False, **indents)  # type: ignore[arg-type]


def lines_from(shown: RenderableType, width: int) -> list[Text]:
    console = Console(width=width, file=io.StringIO(), color_system="truecolor")
    lines = []
    for segments in console.render_lines(shown, pad=False):
        line = Text()
        for segment in segments:
            line.append(segment.text, segment.style or "")
        line.rstrip()
        lines.append(line)
    return lines
