"""Meetings: what tiles come to that meet lane by lane or in a dot, and whether they agree in their indices there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from .....inputs.memory import Array
from .graph import Conflict, Flow, Site, Tile
from .lanes import NOWHERE, Lanes, along, contracted, differ, joined, left_out, together, without

_SUMS, _MAXIMA = ("fadd", "add"), ("maximumf", "maxnumf", "maxsi")


def lane_by_lane(flow: Flow, lanes: Sequence[Lanes | None], name: str, site: Site) -> Lanes | None:
    """The lanes of what an operation makes of up to two tiles, which must agree in their indices."""
    known = [one for one in lanes if one is not None]
    if len(known) < 2:
        return known[0] if known else None
    left, right = known
    is_sum = name in _SUMS
    both = left.cover is not None and right.cover is not None
    lost = _lost(flow, left, right, is_sum=is_sum, both=both)
    left, right = without(left, lost), without(right, lost)
    flow.compare(left, right, site)
    _note_gaps(flow, left, right, site)
    _note_gaps(flow, right, left, site)
    if both and (is_sum or name in _MAXIMA):
        cover = together(left.cover, right.cover, is_sum=is_sum)
    else:
        cover = left.cover if left.cover is not None and left.at.keys() >= right.at.keys() else right.cover
        cover = left.cover if right.cover is None else cover
    return joined(left, right, cover)


def laid_across(tiles: Sequence[Tile | None]) -> Iterator[tuple[int, str]]:
    """(number of the tile, letter) of each vector that goes along another axis of scores than its rows or keys do.

    What was loaded, or summed, as a vector gets its axis where it meets the scores: its load is right.
    """
    known = [tile.lanes if tile else None for tile in tiles]
    for number, (tile, own) in enumerate(zip(tiles, known, strict=True)):
        scores = known[1 - number] if len(tiles) == 2 else None
        if tile is None or own is None or scores is None or not (scores.is_matrix and _is_of_vector(tile)):
            continue
        for letter in (x for x in "mn" if x in own.at):
            due = scores.at[letter]
            # A vector as it is goes along the last axis.
            at, along_due = _axes(np.broadcast_to(own.at[letter], due.shape)), _axes(due)
            if len(at) == len(along_due) == 1 and at != along_due:
                yield number, letter


def _is_of_vector(tile: Tile) -> bool:
    """Whether what it holds was made with one axis, however many it has by now."""
    made = tile.node.lanes
    return made is not None and all(at.ndim == 1 for at in made.at.values())


def _axes(values: Array) -> list[int]:
    return [axis for axis in range(values.ndim) if along(values, axis) is None]


def _lost(flow: Flow, left: Lanes, right: Lanes, *, is_sum: bool, both: bool) -> set[str]:
    """The letters in which two tiles may differ, and whose index is lost then.

    A sum may go on over heads or batches, of sums or of what the same loads were made into; and dims of one tensor meet
    where pairs of them are rotated.

    Args:
        both: whether both are sums.
    """
    shared = left.at.keys() & right.at.keys()
    apart = {x for x in shared if differ(left.at[x], right.at[x]) is not None}
    over = {x for x in apart & {"h", "b"} if is_sum and (both or left.origins[x] == right.origins[x])}
    return over | {x for x in apart & {"d", "e"} if _tensors(flow, left, x) == _tensors(flow, right, x)}


def _tensors(flow: Flow, lanes: Lanes, letter: str) -> set[str]:
    return {flow.sources[number].tensor for number in lanes.origins[letter]}


def _note_gaps(flow: Flow, lanes: Lanes, beside: Lanes, site: Site) -> None:
    """Notes the loads of a tile that leave out what a tile beside it has."""
    found = left_out(lanes, beside)
    if found:
        flow.gaps[site] = flow.gaps.get(site, frozenset()) | found


def product(flow: Flow, site: Site, a: Lanes | None, b: Lanes | None, left: Array, right: Array) -> Lanes | None:
    """The lanes of a dot of two tiles, of [M, K] and [K, N]."""
    if a is None and b is None:
        return None
    shape = left.shape[0], right.shape[1]
    sides, summed = list[Lanes](), list[dict[str, Array | None]]()
    for lanes, axis in ((a, 1), (b, 0)):
        at, over = dict[str, Array](), dict[str, Array | None]()
        for letter, values in lanes.at.items() if lanes else ():
            kept = along(values, axis)
            if kept is None:
                over[letter] = along(values, 1 - axis)
            else:
                at[letter] = np.broadcast_to(np.expand_dims(kept, axis), shape)
        sides.append(Lanes(at, {letter: lanes.origins[letter] for letter in at} if lanes else {}))
        summed.append(over)
    flow.compare(sides[0], sides[1], site)
    made = joined(sides[0], sides[1])
    _compare_sums(flow, a, b, summed, site, ((left != 0).any(0), (right != 0).any(1)))
    cover = None
    for lanes, axis in ((a, 1), (b, 0)):
        if lanes is not None and lanes.is_matrix:
            cover = contracted(lanes, axis, flow.sizes)
    is_over_rows = any("m" in one for one in summed) or (cover is not None and cover.letter == "m")
    at = {letter: values for letter, values in made.at.items() if letter != "h" or not is_over_rows}
    return Lanes(at, {letter: made.origins[letter] for letter in at}, cover) if at else None


def _compare_sums(
    flow: Flow, a: Lanes | None, b: Lanes | None, summed: list[dict[str, Any]], site: Site, held: tuple[Array, Array]
) -> None:
    """What a dot sums over must be the same axis, element by element.

    Args:
        held: for each side, which of the elements that are summed over are not 0 throughout.
    """
    if a is None or b is None:
        return
    left, right = summed
    for letter in left.keys() & right.keys():
        if left[letter] is not None and right[letter] is not None:
            one = Lanes({letter: left[letter]}, {letter: a.origins[letter]})
            other = Lanes({letter: right[letter]}, {letter: b.origins[letter]})
            flow.compare(one, other, site)
            _note_gaps(flow, one, _where(other, held[1]), site)
            _note_gaps(flow, other, _where(one, held[0]), site)
        elif left[letter] is not None or right[letter] is not None:
            # One side has another index in each column, so that most of them differ.
            apart = Conflict(site, letter, a.origins[letter], b.origins[letter], (NOWHERE, NOWHERE))
            flow.conflicts.append(apart)
    x, y = (next((letter for letter in "mnde" if letter in side), "") for side in summed)
    if x and y and not left.keys() & right.keys():
        flow.conflicts.append(Conflict(site, f"{x}/{y}", a.origins[x], b.origins[y], (NOWHERE, NOWHERE)))


def _where(lanes: Lanes, held: Array) -> Lanes:
    return replace(lanes, at={letter: np.where(held, values, NOWHERE) for letter, values in lanes.at.items()})


def lacking(flow: Flow, lanes: Lanes | None) -> frozenset[int]:
    """The loads of an operand of a dot that hold a part of its dims alone."""
    dims = next((x for x in "de" if lanes is not None and x in lanes.at), "")
    if lanes is None or not dims or lanes.cover is not None:
        return frozenset()
    count = len(np.unique(lanes.at[dims][lanes.at[dims] >= 0]))
    return lanes.origins[dims] if 0 < count < flow.sizes[dims] else frozenset()
