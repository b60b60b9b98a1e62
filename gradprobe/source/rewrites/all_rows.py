"""The table of all rows, read both ways: what plants each fault, and the edits of a statement that may undo one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache

from ...model.mechanisms import gathered
from ..kernel_file import Change, KernelFile
from .address_rows import ADDRESSES
from .mask_rows import MASKS
from .range_rows import RANGES
from .row import Row
from .siblings import SIBLINGS
from .spots import Edits, Spot
from .value_rows import VALUES

ROWS: tuple[Row, ...] = (SIBLINGS, *ADDRESSES, *MASKS, *RANGES, *VALUES)
# By the name of each, in the order in which they are drawn from.
OPERATORS: dict[str, Callable[[KernelFile], Iterator[Change]]] = {row.name: row.plants for row in ROWS if row.plants}


@lru_cache(maxsize=1024)  # the values of several lines come the same ways
def undone(spot: Spot) -> list[tuple[float, Edits, Row]]:
    """(rank, edits, row) of all edits of one spot."""
    found = []
    for row in ROWS:
        if spot.is_on_device or row.of_hosts:
            edits = gathered(f"edits/{row.name}", _of_row, row, spot, credit=lambda one: ("edits", one[1]))
            found += [(rank, each, row) for rank, each in edits]
    # What a sibling has says less of an edit than another row that gives the same.
    of = {edits: row for _, edits, row in found}
    return [(rank, edits, of[edits]) for rank, edits, _ in found]


def _of_row(row: Row, spot: Spot) -> Iterator[tuple[float, Edits]]:
    for source in row.undoes:
        yield from source(spot)
    if row.again is not None:
        spans = [spot.file.span(root) for root in spot.roots]
        for edits in _planted(row, spot.file).get(spot.statement, ()):
            if all(any(start <= edit.start <= edit.end <= end for start, end in spans) for edit in edits):
                yield row.again, edits


@lru_cache(maxsize=256)
def _planted(row: Row, file: KernelFile) -> dict[object, list[Edits]]:
    """What a row plants in a file, by the statement that it changes."""
    found: dict[object, list[Edits]] = {}
    for change in row.plants(file) if row.plants else ():
        found.setdefault(file.statement(change.node), []).append(change.edits)
    return found
