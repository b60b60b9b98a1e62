"""Rules: what each may undo in a spot. Each gives edits, with how far it is from what usually went wrong."""

from __future__ import annotations

from collections.abc import Callable

from ...model.mechanisms import gathered
from .alike import in_scope
from .mask_rules import comparison_turned, mask_added
from .place_rules import (
    as_planted,
    call_undone,
    made_wide,
    moved_out,
    name_swapped,
    operand_dropped,
    order_changed,
    pointer_advanced,
    pointer_begun,
    range_moved,
    term_missing,
    whole_tiles,
)
from .repairs import Repairs, Undone
from .spots import Spot
from .value_rules import (
    axis_given,
    constant_changed,
    delta_taken,
    factor_added,
    factor_moved,
    factor_of_sibling,
    sign_changed,
    sum_kept,
    transposed,
)

RULES: tuple[Callable[[Repairs, Spot, list[str]], Undone], ...] = (
    as_planted, name_swapped, call_undone, whole_tiles, range_moved, operand_dropped, sum_kept, comparison_turned,
    sign_changed, constant_changed, factor_added, mask_added, transposed, axis_given, delta_taken, order_changed,
    made_wide, factor_moved, factor_of_sibling, moved_out, pointer_advanced, pointer_begun, term_missing,
)  # fmt: skip
# Outside kernels: sizes, grids, allocations and what launches pass.
_OF_HOSTS = (as_planted, name_swapped, call_undone, whole_tiles, operand_dropped, constant_changed, order_changed)


def undone(by: Repairs, spot: Spot) -> Undone:
    """The edits of one spot."""
    scope = in_scope(by.file, spot.function)
    for rule in RULES if spot.function in by.file.kernels else _OF_HOSTS:
        yield from gathered(f"edits/{rule.__name__}", rule, by, spot, scope, credit=lambda one: ("edits", one[1]))
