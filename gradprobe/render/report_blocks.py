"""Blocks: what a report shows, piece by piece. A terminal folds each into lines, and a page lays it out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from rich.table import Table
from rich.text import Text

from .rows import ALL, folded, headed, headed_in, lines_from, short


class ReportBlock(Protocol):
    kind: ClassVar[str]
    """By which a page lays it out."""

    def lines(self, width: int) -> Sequence[Text]:
        """As a terminal of so many columns shows it."""


@dataclass(frozen=True)
class Title:
    """What stands above a part: a heading on a page, an empty line on a terminal."""

    text: str
    kind: ClassVar[str] = "title"

    def lines(self, _: int) -> Sequence[Text]:
        return [Text()]


@dataclass(frozen=True)
class Words:
    """A sentence, in so many rows of a terminal at most."""

    text: str
    head: str = ""
    """A word before it, which has the style then."""
    style: str = ""
    rows: int = ALL
    hangs: bool = False
    """Whether all of its lines stand beside its head."""
    kind: ClassVar[str] = "words"

    def lines(self, width: int) -> Sequence[Text]:
        if self.hangs:
            return list(headed(self.head, self.style, self.text, width))
        if self.head:
            return headed_in(self.head, self.style, self.text, width, self.rows)
        return (
            folded(self.text, width, self.style)
            if self.rows == ALL
            else short(self.text, width, self.rows)
        )


@dataclass(frozen=True)
class TextLine:
    """A line that is never folded."""

    text: Text
    kind: ClassVar[str] = "line"

    def lines(self, _: int) -> Sequence[Text]:
        return [self.text]


@dataclass(frozen=True)
class CommandLine:
    """A command that does the same again."""

    text: str
    kind: ClassVar[str] = "command"

    def lines(self, _: int) -> Sequence[Text]:
        return [Text(f"  again: {self.text}", overflow="ignore")]


@dataclass(frozen=True)
class CellGrid:
    """Rows of cells, the first of them dim: so many columns to the left, the others to the right."""

    rows: Sequence[Sequence[str | Text]]
    left: int = 1
    least: int = 0
    """How wide each of the others is at least."""
    kind: ClassVar[str] = "grid"

    def lines(self, _: int) -> Sequence[Text]:
        table = Table(box=None, show_header=False, padding=(0, 0, 0, 2))
        for at in range(len(self.rows[0])):
            is_left = at < self.left
            table.add_column(
                justify="left" if is_left else "right",
                min_width=0 if is_left else self.least,
                no_wrap=True,
            )
        for at, row in enumerate(self.rows):
            table.add_row(*row, style="" if at else "dim")
        return lines_from(table, 10_000)


def sentences(texts: Iterable[str], rows: int = ALL) -> Iterator[Words]:
    for text in texts:
        yield Words(text, rows=rows)


def lines_in(blocks: Iterable[ReportBlock], width: int) -> list[Text]:
    """All of them, as a terminal of so many columns shows them."""
    lines = list[Text]()
    for block in blocks:
        lines += block.lines(width)
    return lines
