"""Tracer: the methods of Triton's interpreter, wrapped so that each operation becomes a node of a flow.

What is rearranged keeps its indices, what meets lane by lane must agree in them, and what a dot sums over must be the
same on both sides.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter as shipped

from ....inputs.memory import Array, Unwritten
from ....targets.surroundings import replaced
from ..memory.views import REARRANGING, Handle, Method
from ..memory.watch import watched_memory
from ..plans import PLANS
from .accesses import IndexedAccesses
from .graph import Crossing, Flow, Node, Tile
from .lanes import NOWHERE, Cover, Lanes, reduced, without
from .meetings import lacking, laid_across, lane_by_lane, product
from .slices import Slices

if TYPE_CHECKING:
    from torch import Tensor

# The operations that work lane by lane, by which of their operands have lanes.
_BY_LANE = {
    "clampf exp exp2 log log2 sqrt precise_sqrt rsqrt floor ceil sin cos erf fabs iabs "
    "si_to_fp ui_to_fp fp_to_si fp_to_ui fp_ext fp_trunc int_cast fp_to_fp": slice(1),
    "fadd fsub fmul fdiv precise_divf add sub mul maximumf maxnumf maxsi minimumf minnumf and or "
    "fcmpOLT fcmpOGT fcmpOLE fcmpOGE fcmpOEQ fcmpONE fcmpUNE": slice(2),
    "select": slice(1, 3),
}
_MOVED = tuple(name for name in REARRANGING if name not in ("create_gather", "create_select"))


def _then(note: Callable[..., object], flow: Flow) -> Callable[[Method], Method]:
    """Wraps a method: what it made, and what it made it of, is noted afterwards."""

    def wrapper(original: Method) -> Method:
        def method(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            flow.attempt(note, result, *args)
            return result

        return method

    return wrapper


class _Tracer:
    """The wrappers of one flow. Their notes take what a method made, then what it was called with."""

    def __init__(self, flow: Flow) -> None:
        self._flow, self._accesses = flow, IndexedAccesses(flow)

    def patches(self) -> Iterator[tuple[Any, str, Callable[[Method], Method]]]:
        """(owner, method name, wrapper) of each method of the interpreter that is wrapped."""
        builder, accesses = shipped.InterpreterBuilder, self._accesses

        def loaded(result: Any, builder: Any, pointers: Any, mask: Any, *_: Any) -> None:
            accesses.loaded(result, pointers, mask)

        def stored(_: Any, builder: Any, pointers: Any, value: Any, mask: Any, *__: Any) -> None:
            accesses.stored(value, pointers, mask, is_atomic=False)

        def changed(_: Any, builder: Any, op: Any, pointers: Any, value: Any, mask: Any, *__: Any) -> None:
            accesses.stored(value, pointers, mask, is_atomic=True)

        noted = (
            (builder, "create_masked_load", loaded),
            (builder, "create_masked_store", stored),
            (builder, "create_atomic_rmw", changed),
            (builder, "create_fma", self._fused),
            (builder, "create_dot", self._dotted),
            (shipped.ReduceOps, "apply_impl", self._reduced),
            (shipped.ScanOps, "apply_impl", self._scanned),
        )
        yield from ((owner, name, _then(note, self._flow)) for owner, name, note in noted)
        for names, operands in _BY_LANE.items():
            yield from (
                (builder, f"create_{name}", _then(partial(self._met, name, operands), self._flow))
                for name in names.split()
                if hasattr(builder, f"create_{name}")
            )
        yield from ((builder, name, self._moving) for name in _MOVED)
        yield shipped, "_patch_lang_tensor", self._transposing

    # --- what is moved

    def _moving(self, original: Method) -> Method:
        """What only moves lanes about makes no node of its own."""

        def method(builder: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(builder, *args, **kwargs)
            tiles = [Tile.of(arg) for arg in args]
            if any(tiles):
                self._flow.attempt(self._carry, result, partial(original, builder, **kwargs), args, tiles)
            return result

        return method

    def _carry(self, result: Any, move: Method, args: Sequence[Any], tiles: Sequence[Tile | None]) -> None:
        results = result if isinstance(result, tuple) else (result,)
        known = [tile.lanes if tile else None for tile in tiles]
        moved_tiles = [tile for tile in tiles if tile is not None]
        letters = dict.fromkeys(x for lanes in known if lanes for x in lanes.at)
        found: list[dict[str, Array]] = [{} for _ in results]
        for letter in letters:
            stand_ins = [
                Handle(_of_letter(lanes, letter, arg), tl.int32) if isinstance(arg, Handle) else arg
                for arg, lanes in zip(args, known, strict=True)
            ]
            moved = move(*stand_ins)
            for each, out in zip(found, moved if isinstance(moved, tuple) else (moved,), strict=True):
                each[letter] = out.data
        origins = {
            x: frozenset[int]().union(*(lanes.origins.get(x, frozenset()) for lanes in known if lanes)) for x in letters
        }
        for handle, at in zip(results, found, strict=True):
            lanes = Lanes(at, origins, _kept_cover(moved_tiles, handle)) if at else None
            if len(moved_tiles) == 1:  # the same value, elsewhere
                Tile(moved_tiles[0].node, lanes).keep(handle)
            else:
                self._flow.note(handle, self._flow.site("join"), _nodes(moved_tiles), lanes)

    def _transposing(self, original: Method) -> Method:
        def patch(tensor: Any, scope: Any) -> None:
            original(tensor, scope)
            plain = tensor.T.fget

            def transposed(this: Any) -> Any:
                result, tile = plain(this), Tile.of(this.handle)
                if tile is not None:
                    Tile(tile.node, tile.lanes.moved(np.transpose) if tile.lanes else None).keep(result.handle)
                return result

            tensor.T = property(transposed)

        return patch

    # --- what makes a node

    def _met(self, name: str, operands: slice, result: Any, builder: Any, *args: Any) -> None:
        tiles = [Tile.of(arg) for arg in args[operands]]
        others = [arg for arg, tile in zip(args[operands], tiles, strict=True) if tile is None]
        is_nothing = not result.data.any() or any(not other.data.any() for other in others)
        if not any(tiles) or (name == "fmul" and others and is_nothing):
            return  # nothing that is followed, or an accumulator that holds nothing yet, rescaled, by NaN too
        site = self._flow.site(name)
        known = [tile.lanes if tile else None for tile in tiles]
        for number, letter in laid_across(tiles):
            vector, scores, own = tiles[number], tiles[1 - number], known[number]
            if vector is not None and scores is not None and own is not None:
                self._flow.crossings.append(Crossing(site, letter, vector.node, scores.node))
                known[number] = without(own, {letter})  # its load is not to be blamed, nor what is made of both
        lanes = lane_by_lane(self._flow, known, name, site)
        self._flow.note(result, site, _nodes(tiles), lanes)

    def _fused(self, result: Any, builder: Any, *args: Any) -> None:
        tiles = [Tile.of(arg) for arg in args[:3]]
        if any(tiles):
            site = self._flow.site("fma")
            x, y, z = (tile.lanes if tile else None for tile in tiles)
            xy = lane_by_lane(self._flow, [x, y], "fmul", site)
            self._flow.note(result, site, _nodes(tiles), lane_by_lane(self._flow, [xy, z], "fadd", site))

    def _dotted(self, result: Any, builder: Any, a: Any, b: Any, d: Any, *_: Any) -> None:
        tiles = [Tile.of(a), Tile.of(b), Tile.of(d)]
        if not any(tiles):
            return
        flow, site = self._flow, self._flow.site("dot")
        left, right, added = (tile.lanes if tile else None for tile in tiles)
        made = None
        if a.data.ndim == 2:
            made = product(flow, site, left, right, a.data, b.data)
        lanes = lane_by_lane(flow, [made, added], "fadd", site)
        flow.note(result, site, _nodes(tiles), lanes, lacking(flow, left) | lacking(flow, right))

    def _reduced(self, result: Any, operation: Any, inputs: Any, *_: Any) -> None:
        tile = Tile.of(inputs[0].handle)
        if tile is None:
            return
        site, lanes, axis = self._flow.site("reduce"), tile.lanes, operation.axis
        for each in _all_of(result):
            shape = each.handle.data.shape
            kept = None if lanes is None or axis is None else reduced(lanes, axis, shape, self._flow.sizes)
            self._flow.note(each.handle, site, [tile.node], kept)

    def _scanned(self, result: Any, operation: Any, inputs: Any, *_: Any) -> None:
        tile = Tile.of(inputs[0].handle)
        if tile is not None:
            for each in _all_of(result):
                self._flow.note(each.handle, self._flow.site("scan"), [tile.node], tile.lanes)


def _all_of(result: Any) -> Sequence[Any]:
    return result if isinstance(result, (tuple, list)) else (result,)


def _nodes(tiles: Sequence[Tile | None]) -> tuple[Node, ...]:
    return tuple(tile.node for tile in tiles if tile is not None)


def _of_letter(lanes: Lanes | None, letter: str, handle: Any) -> Array:
    found = lanes.at.get(letter) if lanes else None
    return np.full(handle.data.shape, NOWHERE, np.int32) if found is None else found


def _kept_cover(tiles: Sequence[Tile], handle: Any) -> Cover | None:
    """The cover of a vector that becomes a column or a row; of anything else that is moved, none."""
    cover = tiles[0].lanes.cover if len(tiles) == 1 and tiles[0].lanes else None
    if cover is None:
        return None
    sizes = [axis for axis, size in enumerate(handle.data.shape) if size == len(cover.counts)]
    return replace(cover, axis=sizes[0]) if len(sizes) == 1 else None


@contextlib.contextmanager
def followed(tensors: Mapping[str, Tensor], flow: Flow, learn: Callable[[Any], None]) -> Iterator[Flow]:
    """While open, every operation of a kernel in Triton's interpreter becomes a node of the flow.

    Args:
        tensors: those that the caller knows by name.
        learn: called with each tensor that a kernel is launched with, before it runs.

    Raises:
        InterpreterNotKnown: this release of Triton lacks something that has to be watched.
    """

    def learning(original: Method) -> Method:
        def init_args(executor: Any, args: Any, kwargs: Any) -> Any:
            for argument in itertools.chain(args, kwargs.values()):
                flow.attempt(learn, argument)
            return original(executor, args, kwargs)

        return init_args

    with watched_memory(tensors, Unwritten()) as memory, PLANS.left_out(), contextlib.ExitStack() as stack:
        flow.memory = memory
        arguments = shipped.GridExecutor, "_init_args_hst", learning
        for owner, name, wrapper in (*_Tracer(flow).patches(), *Slices(flow).patches(), arguments):
            stack.enter_context(replaced(owner, name, wrapper(getattr(owner, name))))
        yield flow
