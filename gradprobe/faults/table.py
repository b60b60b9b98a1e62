"""Every kind of fault that a reference can predict, the likeliest first: of two that fit alike, the first is named."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

from ..model.intermediates import reached
from ..model.mechanisms import gathered
from . import index, mask, operand, precision, store, terms, tile
from .hypothesis import Hypothesis, Observed

_KINDS = (
    store.zeros, index.by_other_strides, index.by_other_numbers, index.stored_elsewhere, index.wraps, mask.comparisons,
    mask.left_out, mask.bias_windows, terms.other_terms, mask.rows_without_keys, store.shares, operand.others,
    operand.by_tiles, store.exchanged, terms.factors, tile.tiles_left_out, tile.read_beyond_the_end,
    precision.hypotheses,
)  # fmt: skip


def hypotheses(seen: Observed) -> Iterator[Hypothesis]:
    """All that may have made a run wrong by itself."""
    for kind in _KINDS:
        name = f"faults/{kind.__module__.rpartition('.')[2]}"
        yield from gathered(name, partial(_showing, kind), seen, credit=lambda found: ("fault", found.fault))


def _showing(kind: Callable[[Observed], Iterable[Hypothesis]], seen: Observed) -> Iterator[Hypothesis]:
    """Those that may show there.

    A kernel computes P, dP and dS anew and may hand on their errors where what another one exposes is right.
    """
    for found in kind(seen):
        if not set(reached(found.changes, seen.case.family)).isdisjoint(seen.own):
            yield found
