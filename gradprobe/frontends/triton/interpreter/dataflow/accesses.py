"""Accesses: which elements loads and stores read and write, and what stores leave in memory for later loads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from .....inputs.memory import Array
from ..memory.stream import OF_BLOCKS, REARRANGING, Access, Handle, Note, Operation
from ..memory.views import View
from .graph import Flow, Node, StoredTile, Tile
from .lanes import NOWHERE, Cover, IndexTable, Lanes, is_block, varying, without_tail

# Elements of a storage up to which it is kept what was stored where: 64 MiB a letter.
_LARGEST_SHADOW = 1 << 24
_OTHER = {"m": "n", "n": "m"}
_SLICE = "gradprobe slice"
_NO_LINES = frozenset[int]()
_NODE = "node"
# The operations on whole numbers and pointers, whose lines belong to what they make; the others only hand lines on.
_STEPS = (
    "addptr add sub mul sdiv udiv srem urem and or xor shl ashr lshr minsi maxsi minui maxui make_block_ptr advance"
)
_HAND_ON = (*REARRANGING, "create_int_cast", "create_bitcast", "create_int_to_ptr", "create_ptr_to_int")


class IndexedAccesses:
    """The loads and stores of a flow.

    A load gives every lane the index of the element that it read: by the address in a tensor whose axes are known, else
    by what was stored there.
    """

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self._tables: dict[tuple[int, int], IndexTable] = {}
        self._shadows: dict[int, dict[str, Array]] = {}
        """By home and letter, the index that was stored with each element; and the number of the node, as _NODE."""
        self._over: dict[int, str] = {}
        """By home of sums, what they are over: m or n; "" where parts of the dims are stored apart: not known."""

    def loaded(self, result: Any, access: Access) -> None:
        """Notes what a load read."""
        if not access.parts:
            return
        flow, shape = self.flow, result.data.shape
        at: dict[str, Array] = {}
        names: dict[str, None] = {}
        writers: list[Node] = []
        is_derived = True
        for view, lanes, addresses in access.parts:
            names[view.name] = None
            is_derived &= not self._letters(view)
            for letter, values in self._indices_of(view, addresses).items():
                at.setdefault(letter, np.full(result.data.size, NOWHERE, np.int32))[lanes] = values
            writers += self._writers_of(view, addresses)
        at = without_tail({letter: values.reshape(shape) for letter, values in at.items()}, flow.sizes)
        site = flow.site_of(access)
        number = flow.number("/".join(names), site, slice_of(access.pointers))
        if is_derived:
            flow.derived.add(number)
        if not is_block(at):
            flow.irregular.add(number)
        _reach(flow, number, at)
        cover = self._cover_of(access.parts[0][0].home, at) if len(access.parts) == 1 else None
        flow.note(result, site, writers, Lanes(at, dict.fromkeys(at, frozenset([number])), cover) if at else None)

    def stored(self, access: Access) -> None:
        """Notes what a store, or an atomic, wrote."""
        value, flow = access.value, self.flow
        tile, site = Tile.of(value), flow.site_of(access)
        if tile is None:
            if ((value.data == value.data.flat[0]) | (value.data != value.data)).all():
                flow.empty.update({view.home: site for view, _, _ in access.parts})
            return
        whole = tile.lanes
        told_apart = _told_apart(whole) if whole is not None else {}
        for view, lanes, addresses in access.parts:
            has_nan = tile.node.has_nan and bool(np.isnan(value.data.reshape(-1)[lanes]).any())
            here = {x: at.reshape(-1)[lanes] for x, at in told_apart.items()}
            indexed = Lanes(here, whole.origins) if whole is not None else None
            offsets, behind = view.in_bytes(addresses), slice_of(access.pointers)
            store = StoredTile(view.home, tile.node, site, has_nan, offsets, indexed, behind)
            flow.stores.append(store)
            if whole is not None:
                found = self._indices_of(view, addresses) if self._letters(view) else {}
                if found:
                    _compare(flow, store, view.name, found)
                else:
                    flow.unplaced.append(store)
                self._visit(view.home, whole, is_atomic=access.kind == "atomic")
            self._leave(view, addresses, here, tile.node)

    # --- the pairs of rows and keys in what is stored

    def _visit(self, home: int, lanes: Lanes, *, is_atomic: bool) -> None:
        """Notes which pairs of a row and a key are in what was stored."""
        found = lanes.of_sum()
        if found is None or lanes.cover is None:
            return
        if self._over.get(home) == "" or not self._is_of_all_dims(lanes.at):
            self._over[home] = ""
            self.flow.visits.pop(home, None)
            return
        self._over[home] = lanes.cover.letter
        visits = self.flow.visits.setdefault(home, np.zeros([self.flow.sizes[x] for x in "bhmn"], np.int16))
        kept, batch, index, counts = found
        by_kept = visits if kept == "m" else visits.swapaxes(2, 3)
        for b, i, count in zip(batch, index, counts, strict=True):
            heads = count.any(1) & (b >= 0) & (i >= 0)
            by_kept[b, heads, i] = count[heads] + (by_kept[b, heads, i] if is_atomic else 0)

    def _cover_of(self, home: int, at: Mapping[str, Array]) -> Cover | None:
        """Which rows and keys are in the sums that were stored where a tile of rows and dims was loaded."""
        over = self._over.get(home, "")
        letter, kept = "h" if "h" in at else "g", _OTHER.get(over, "")
        is_of_sums = over and {"b", kept, letter} <= at.keys() and at.keys() & {"d", "e"}
        axes = varying(at[kept]) if is_of_sums and at[kept].ndim == 2 else []
        if len(axes) != 1 or not self._is_of_all_dims(at):
            return None
        batch, index, head = (at[x].max(1 - axes[0]) for x in ("b", kept, letter))
        visits = self.flow.visits[home]
        counts = (visits if kept == "m" else visits.swapaxes(2, 3))[batch, :, index]
        many = visits.shape[1] // self.flow.sizes[letter]
        own = (batch >= 0) & (index >= 0) & (np.arange(visits.shape[1])[:, None] // many == head)
        return Cover(axes[0], over, np.where(own.T[:, :, None], counts, 0).astype(np.int16))

    def _is_of_all_dims(self, at: Mapping[str, Array]) -> bool:
        """Whether a tile has no dims, or all."""
        return all(len(np.unique(at[x][at[x] >= 0])) in (0, self.flow.sizes[x]) for x in "de" if x in at)

    # --- the indices of elements

    def _letters(self, view: View) -> str:
        return self.flow.axes(view.known or view)

    def _indices_of(self, view: View, addresses: Array) -> dict[str, Array]:
        owner = view.known or view
        letters = self.flow.axes(owner)
        if not letters:
            return {x: at for x, at in self._left_at(view, addresses).items() if x != _NODE}
        key = (owner.start, owner.elements.span)
        if key not in self._tables:
            self._tables[key] = IndexTable(owner.elements, letters, self.flow.sizes)
        return self._tables[key].at(_offsets(owner.start, addresses, owner.elements.itemsize))

    def _writers_of(self, view: View, addresses: Array) -> list[Node]:
        numbers = np.unique(self._left_at(view, addresses).get(_NODE, NOWHERE))
        return [self.flow.nodes[number] for number in numbers if number >= 0]

    def _left_at(self, view: View, addresses: Array) -> dict[str, Array]:
        """What stores left in memory there."""
        shadow = self._shadows.get(view.home, {})
        offsets: Array = _offsets(view.low, addresses, view.elements.itemsize) if shadow else None
        return {x: at[np.clip(offsets, 0, len(at) - 1)] for x, at in shadow.items()}

    def _leave(self, view: View, addresses: Array, here: Mapping[str, Array], node: Node) -> None:
        """Leaves in memory what was stored there: the indices, and the node."""
        size = (view.high - view.low) // view.elements.itemsize
        if size > _LARGEST_SHADOW:
            return
        offsets = _offsets(view.low, addresses, view.elements.itemsize)
        fits = (offsets >= 0) & (offsets < size)
        shadow = self._shadows.setdefault(view.home, {})
        for letter, values in (*here.items(), (_NODE, np.full(len(offsets), node.number))):
            if letter not in shadow or len(shadow[letter]) != size:
                shadow[letter] = np.full(size, NOWHERE, np.int32)
            shadow[letter][offsets[fits]] = values[fits]


def _told_apart(lanes: Lanes) -> Mapping[str, Array]:
    """The indices of a tile; neither rows nor keys where one axis is of both, as after a load of wrong elements."""
    is_mixed = lanes.is_matrix and {*varying(lanes.at["m"])} & {*varying(lanes.at["n"])}
    return {x: at for x, at in lanes.at.items() if not (is_mixed and x in "mn")}


def _reach(flow: Flow, number: int, at: Mapping[str, Array]) -> None:
    letters, indices = "", []
    for letter in (x for x in "bhgmn" if x in at):
        index = at[letter].reshape(-1)
        if (index >= 0).any():  # a letter without any known index is no axis of what is accessed
            reached = flow.reached.setdefault((number, letter), np.zeros(flow.sizes[letter], bool))
            reached[index[index >= 0]] = True
        if letter != "g" or "h" not in at:
            letters += letter
            indices.append(index)
    inside = np.logical_and.reduce([each >= 0 for each in indices])
    axes, filled = flow.filled.setdefault(number, (letters, np.zeros([flow.sizes[x] for x in letters], bool)))
    if axes == letters:  # what kernels stored in a buffer of their own has those that it had then
        filled[tuple(each[inside] for each in indices)] = True


def place(flow: Flow, view: View, letters: str, is_alone: bool = True) -> None:
    """Compares what was stored into a tensor that was not known then with the elements that it was stored to.

    Args:
        letters: the axes of the tensor.
        is_alone: whether no other result lies in its storage, whose stores would be taken for this one's.
    """
    table = IndexTable(view.elements, letters, flow.sizes)
    for store in flow.unplaced:
        if store.home != view.home or store.offsets is None:
            continue
        at = table.at((store.offsets - (view.start - view.low)) // view.elements.itemsize)
        if is_alone or any((index >= 0).any() for index in at.values()):
            _compare(flow, store, view.name, at)


def _compare(flow: Flow, store: StoredTile, name: str, at: Mapping[str, Array]) -> None:
    """Compares what a store left in a tensor with the elements that it was stored to."""
    assert store.lanes is not None
    number = flow.number(name, store.site, store.behind)
    _reach(flow, number, at)
    flow.compare(store.lanes, Lanes(at, dict.fromkeys(at, frozenset([number]))), store.site)


def _offsets(start: int, addresses: Array, itemsize: int) -> Array:
    return (addresses.astype(np.int64) - np.int64(start)) // itemsize


# --- slices: the lines that an address was made by, as numbers of `Flow.lines` in the `attr` of handles


def notes_of_slices(flow: Flow) -> Iterator[tuple[str, Note]]:
    """What is to be called after each operation by which addresses are made."""
    for name in _STEPS.split():
        yield f"create_{name}", partial(_step, flow)
    for name in _HAND_ON:
        yield name, _hand_on
    for name in OF_BLOCKS:
        yield name, _of_block


def _step(flow: Flow, step: Operation) -> None:
    """Takes the line into the slice of what it made."""
    result = step.result
    if not isinstance(result, Handle) or result.data.dtype.kind in "iu":
        _notes(result)[_SLICE] = slice_of(*step.args) | {flow.line()}


def _hand_on(step: Operation) -> None:
    found = slice_of(*step.args)
    for each in step.results if found else ():
        _notes(each)[_SLICE] = found


def _of_block(step: Operation) -> None:
    pointers, _ = step.result
    _notes(pointers)[_SLICE] = slice_of(step.of, step.of.base, *step.of.strides, *step.args)


def slice_of(*values: Any) -> frozenset[int]:
    """The lines behind some handles, block pointers, or lists of them."""
    found = _NO_LINES
    for value in values:
        for each in value if isinstance(value, (list, tuple)) else (value,):
            lines = _notes(each).get(_SLICE, _NO_LINES)
            found = found | lines if found else lines
    return found


def _notes(value: Any) -> dict[str, Any]:
    """Where a handle, or the handle of a block, keeps what is noted of it; of anything else nothing is."""
    if isinstance(value, Handle):
        return value.attr  # type: ignore[no-any-return]
    return vars(value) if hasattr(type(value), "materialize_pointers") else {}
