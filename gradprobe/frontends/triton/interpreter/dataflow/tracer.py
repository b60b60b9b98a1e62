"""Each operation of a kernel becomes a node of a flow."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import triton.language as tl
from torch import Tensor

from .....inputs.memory import Array
from ..memory_watch import watched_memory
from ..plans import Handle
from ..stream import MOVES, Note, Operation, Watcher
from ..views import InterpretedLaunch, Site
from .accesses import IndexedAccesses
from .graph import TILE, Conflict, Flow, Node, Tile, tile_of
from .lanes import NOWHERE, UNKNOWN, Cover, Lanes, along, differ, varying

# The operations that work lane by lane, by how many operands have lanes; a select's come after its condition.
_BY_LANE = {
    1: "clampf exp exp2 log log2 sqrt precise_sqrt rsqrt floor ceil sin cos erf fabs iabs "
    "si_to_fp ui_to_fp fp_to_si fp_to_ui fp_ext fp_trunc int_cast fp_to_fp",
    2: "fadd fsub fmul fdiv precise_divf add sub mul maximumf maxnumf maxsi minimumf minnumf and or "
    "fcmpOLT fcmpOGT fcmpOLE fcmpOGE fcmpOEQ fcmpONE fcmpUNE",
    3: "fma",
}
_SUMS, _MAXIMA = ("fadd", "add", "fma"), ("maximumf", "maxnumf", "maxsi")


class ValueTracer(Watcher):
    def __init__(self, flow: Flow, learn: Callable[[Any], None]) -> None:
        self._flow, self._learn = flow, learn

    def notes(self) -> Iterator[tuple[str, Note]]:
        yield "dot", self._dotted
        yield "ReduceOps.apply_impl", self._reduced
        yield "select", partial(self._met, "select", slice(1, 3))
        for many, names in _BY_LANE.items():
            for name in names.split():
                yield name, partial(self._met, name, slice(many))
        for name in {*MOVES.split()} - {"gather", "select"}:
            yield name, self._moved

    def begun(self, launch: InterpretedLaunch, arguments: Iterable[Any]) -> None:
        for argument in arguments:
            self._learn(argument)

    def _moved(self, step: Operation) -> None:
        tiles = [*map(tile_of, step.args)]
        nodes, origins = _nodes(tiles), dict[str, frozenset[int]]()
        for _, lanes in tiles:
            for x in lanes.at:
                origins[x] = origins.get(x, frozenset()) | lanes.origins[x]
        moved = {x: step.again([*map(partial(_numbered, x), step.args)]) for x in origins}
        for number, handle in enumerate(step.results if nodes else ()):
            at = {x: indices[number].data for x, indices in moved.items()}
            made = Lanes(at, origins, _kept_cover(tiles, handle))
            if len(nodes) == 1:
                handle.attr[TILE] = Tile(nodes[0], made)
            else:
                self._flow.note(handle, step.site("join"), nodes, made)

    def _met(self, name: str, operands: slice, step: Operation) -> None:
        args, (result,) = step.args[operands], step.results
        tiles = [*map(tile_of, args)]
        nodes = _nodes(tiles)
        if name == "fmul" and len(nodes) == 1:
            other = args[tiles[0].node is not None]
            nodes = nodes if result.data.any() and other.data.any() else []
        if not nodes:
            return
        site, known = step.site(name), [tile.lanes for tile in tiles]
        if len(tiles) == 2:
            known = [_less_across(*tiles), _less_across(*tiles[::-1])]
        self._flow.note(result, site, nodes, lane_by_lane(self._flow, known, name, site))

    def _dotted(self, step: Operation) -> None:
        (a, b, *_), flow, made = step.args, self._flow, UNKNOWN
        tiles = [*map(tile_of, step.args[:3])]
        nodes = _nodes(tiles)
        if not nodes:
            return
        site, lacking = step.site("dot"), set[int]()
        left, right, before = [tile.lanes for tile in tiles]
        if a.data.ndim == 2:
            made = product(flow, site, left, right, a.data, b.data, lacking)
        made = lane_by_lane(flow, [made, before], "fadd", site)
        flow.note(step.results[0], site, nodes, made, lacking)

    def _reduced(self, step: Operation) -> None:
        tile, axis, left = tile_of(step.args[0][0].handle), step.of.axis, UNKNOWN
        for each in step.results if tile.node is not None else ():
            if axis is not None:
                left = tile.lanes.reduced(axis, each.handle.data.shape, self._flow.sizes)
            self._flow.note(each.handle, step.site("reduce"), _nodes([tile]), left)


def _nodes(tiles: Sequence[Tile]) -> list[Node]:
    return [tile.node for tile in tiles if tile.node is not None]


def _numbered(letter: str, argument: Any) -> Any:
    if not isinstance(argument, Handle):
        return argument
    found = tile_of(argument).lanes.at.get(letter)
    if found is None:
        found = np.full(argument.data.shape, NOWHERE, np.int32)
    return Handle(found, tl.int32)


def _kept_cover(tiles: Sequence[Tile], handle: Any) -> Cover | None:
    covers = [tile.lanes.cover for tile in tiles if tile.node is not None]
    if len(covers) != 1 or not covers[0]:
        return None
    shape, many = handle.data.shape, len(covers[0].counts)
    return replace(covers[0], axis=shape.index(many)) if shape.count(many) == 1 else None


# --- what tiles come to that meet lane by lane


def lane_by_lane(flow: Flow, lanes: Sequence[Lanes], name: str, site: Site) -> Lanes:
    found, is_sum = lanes[0], name in _SUMS
    for each in lanes[1:]:
        lost = _lost(flow, found, each, is_sum=is_sum)
        left, right = found.without(lost), each.without(lost)
        flow.compare(left, right, site)
        ours, cover = left.cover, right.cover
        if ours is not None and cover is not None and (is_sum or name in _MAXIMA):
            cover = ours.together(cover, is_sum=is_sum)
        elif cover is None or (ours is not None and left.at.keys() >= right.at.keys()):
            cover = ours
        found = left.joined(right, cover)
    return found


def _lost(flow: Flow, left: Lanes, right: Lanes, *, is_sum: bool) -> set[str]:
    # A sum goes on over heads or batches, of sums or what the same loads made; dims of one tensor meet in a rotation.
    found = set[str]()
    are_sums = left.cover is not None and right.cover is not None
    for x in left.at.keys() & right.at.keys():
        ours, theirs = left.origins[x], right.origins[x]
        may_differ = x in "hb" and is_sum and (are_sums or ours == theirs)
        if x in "de":
            may_differ = _tensors(flow, ours) == _tensors(flow, theirs)
        if may_differ and differ(left.at[x], right.at[x]) is not None:
            found.add(x)
    return found


def _tensors(flow: Flow, loads: Iterable[int]) -> set[str]:
    return {flow.sources[load].tensor for load in loads}


def _less_across(tile: Tile, other: Tile) -> Lanes:
    # Without a vector's index that goes along the wrong axis of scores.
    (node, lanes), scores, lost = tile, other.lanes, set[str]()
    vector = node.lanes if node else UNKNOWN  # with one axis, however many it has by now
    if not scores.is_matrix or any(index.ndim != 1 for index in vector.at.values()):
        return lanes
    for x in lanes.at.keys() & {"m", "n"}:
        due = scores.at[x]
        goes, should_go = varying(np.broadcast_to(lanes.at[x], due.shape)), varying(due)
        if len(goes) == len(should_go) == 1 and goes != should_go:
            lost.add(x)
    return lanes.without(lost)


# --- what tiles come to that meet in a dot


def product(
    flow: Flow, site: Site, a: Lanes, b: Lanes, left: Array, right: Array, lacking: set[int]
) -> Lanes:
    """Of a dot [M, K] x [K, N]; `lacking` takes loads of a part of what it sums."""
    kept, summed, cover = list[Lanes](), list[dict[str, Array | None]](), None
    shape = left.shape[0], right.shape[1]
    for lanes, axis in ((a, 1), (b, 0)):
        at, over = dict[str, Array](), dict[str, Array | None]()
        for x, values in lanes.at.items():
            index = along(values, axis)
            if index is None:
                over[x] = along(values, 1 - axis)
            else:
                at[x] = np.broadcast_to(np.expand_dims(index, axis), shape)
        kept.append(Lanes(at, lanes.origins))
        summed.append(over)
        cover = lanes.contracted(axis, flow.sizes) if lanes.is_matrix else cover
    flow.compare(kept[0], kept[1], site)
    for ours, theirs in _compare_sums(flow, a, b, summed, site):
        lacking |= _left_out(ours, theirs, (right != 0).any(1))
        lacking |= _left_out(theirs, ours, (left != 0).any(0))
    is_over_rows = "m" in {*summed[0], *summed[1], cover.letter if cover is not None else ""}
    made = kept[0].joined(kept[1])
    return made.only(made.without({"h"} if is_over_rows else set()).at, cover)


def _compare_sums(
    flow: Flow, a: Lanes, b: Lanes, summed: Sequence[Mapping[str, Array | None]], site: Site
) -> Iterator[tuple[Lanes, Lanes]]:
    left, right = summed
    for x in left.keys() & right.keys():
        ours, theirs = left[x], right[x]
        if ours is not None and theirs is not None:
            both = Lanes({x: ours}, a.origins), Lanes({x: theirs}, b.origins)
            flow.compare(*both, site)
            yield both
        elif ours is not None or theirs is not None:
            # One side has another index in each column, so that most of them differ.
            flow.conflicts.append(Conflict(site, x, a.origins[x], b.origins[x]))
    x, y = (next(filter(side.__contains__, "mnde"), "") for side in summed)
    if x and y and not left.keys() & right.keys():
        flow.conflicts.append(Conflict(site, f"{x}/{y}", a.origins[x], b.origins[y]))


def _left_out(lanes: Lanes, beside: Lanes, held: Array) -> frozenset[int]:
    # One side of a dot may leave out what the other side holds, other than 0.
    ((x, index),) = lanes.at.items()
    is_left_out = ((index == NOWHERE) & (beside.at[x] >= 0) & held).any()
    return lanes.origins[x] if is_left_out else frozenset()


@contextlib.contextmanager
def followed(
    tensors: Mapping[str, Tensor], flow: Flow, learn: Callable[[Any], None]
) -> Iterator[Flow]:
    """`learn`: called with each argument of a launch."""
    followers = IndexedAccesses(flow), ValueTracer(flow, learn)
    with watched_memory(tensors, followers=followers) as memory:
        flow.failures = memory.failures
        yield flow
