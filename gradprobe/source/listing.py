"""Listings: the functions in which lines stand, as text; what a report keeps of the source that it accuses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from ..model.report import Listing, Where
from .text import python_file

# Lines of one listing, and above and below a line where its function is longer or cannot be told.
MOST, AROUND = 400, 12


def listings_of(wheres: Iterable[Where]) -> tuple[Listing, ...]:
    """The functions that hold these lines, each once. Nothing of a file that cannot be read or reads otherwise now."""
    lines: dict[str, list[Where]] = {}
    for where in wheres:
        lines.setdefault(where.file, []).append(where)
    return tuple(dict.fromkeys(listing for file, those in lines.items() for listing in _of_file(file, those)))


def _of_file(file: str, wheres: list[Where]) -> Iterator[Listing]:
    try:
        lines = Path(file).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return
    functions = list[range]()
    for node in python_file(file).functions:
        first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
        functions.append(range(first, (node.end_lineno or first) + 1))
    for where in wheres:
        if 0 < where.line <= len(lines) and lines[where.line - 1].strip() == where.code:
            around = range(max(1, where.line - AROUND), min(len(lines), where.line + AROUND) + 1)
            shown = next((each for each in functions if where.line in each and len(each) <= MOST), around)
            yield Listing(file, shown.start, tuple(lines[at - 1].rstrip() for at in shown))
