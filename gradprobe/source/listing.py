"""Listings: what a report keeps of the source that it accuses."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ..model.report import Listing, Where
from .kernel_file import python_file
from .syntax import first_line

# Lines of one listing, and above and below a line where its function is longer or cannot be told.
MOST, AROUND = 400, 12


def listings_of(wheres: Iterable[Where]) -> tuple[Listing, ...]:
    """The functions that hold these lines, each once. Nothing of a file that cannot be read or reads otherwise now."""
    found = dict[Listing, None]()
    for where in wheres:
        try:
            lines = Path(where.file).read_text(encoding="utf-8").splitlines()
        except (OSError, ValueError):
            continue
        if 0 < where.line <= len(lines) and lines[where.line - 1].strip() == where.code:
            shown = _around(where, len(lines))
            found[
                Listing(where.file, shown.start, tuple(lines[at - 1].rstrip() for at in shown))
            ] = None
    return tuple(found)


def _around(where: Where, count: int) -> range:
    for node in python_file(where.file).functions:
        shown = range(first_line(node), (node.end_lineno or node.lineno) + 1)
        if where.line in shown and len(shown) <= MOST:
            return shown
    return range(max(1, where.line - AROUND), min(count, where.line + AROUND) + 1)
