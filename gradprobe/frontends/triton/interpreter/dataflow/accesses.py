"""Which elements loads and stores touch."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from .....inputs.memory import Array
from ..plans import Handle
from ..stream import MOVES, OF_BLOCKS, POINTING, Note, Operation, Watcher
from ..views import Access, View
from .graph import Flow, Node, StoredTile, tile_of
from .lanes import NOWHERE, Lanes, indices_at, is_block, varying, without_tail

# Elements of a storage up to which it is kept what was stored where: 64 MiB a letter.
_LARGEST_SHADOW = 1 << 24
_NODE = "node"
# Under which handles keep the lines that made them, where they are whole numbers or pointers.
_LINES = "gradprobe lines"
# The operations whose lines belong to the addresses that they make.
_STEPS = (
    "addptr add sub mul sdiv udiv srem urem and or xor shl ashr lshr minsi maxsi minui maxui "
    "make_block_ptr advance"
)


class IndexedAccesses(Watcher):
    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        # By home and letter, the index stored with each element; as _NODE its node's number.
        self._shadows: dict[int, dict[str, Array]] = {}
        self._apart: set[int] = set()  # the homes of sums whose dims lie apart in parts

    def notes(self) -> Iterator[tuple[str, Note]]:
        for name in [*f"{MOVES} {POINTING} int_cast".split(), *OF_BLOCKS]:
            yield name, _keep_lines
        for name in _STEPS.split():
            yield name, self._add_line

    def _add_line(self, step: Operation) -> None:
        (result,) = step.results
        if not isinstance(result, Handle) or result.data.dtype.kind in "iu":
            own = self.flow.line(step.site("").lines)
            _kept(result)[_LINES] = lines_behind(*step.args) | {own}

    def after(self, access: Access, result: Any) -> None:
        if access.value is not None:
            self._store(access)
        elif access.kind == "load" and access.parts:
            self._load(access, result)

    def _load(self, access: Access, result: Any) -> None:
        flow, at, names, writers = self.flow, dict[str, Array](), dict[str, None](), list[Node]()
        is_derived = True
        for view, lanes, addresses in access.parts:
            names[view.name] = None
            offsets = view.in_bytes(addresses) // view.elements.itemsize
            stored = dict[str, Array]()
            for x, left in self._shadows.get(view.home, stored).items():
                stored[x] = left[np.clip(offsets, 0, len(left) - 1)]
            numbers = np.unique(stored.pop(_NODE, NOWHERE))
            writers += map(flow.nodes.__getitem__, numbers[numbers >= 0])
            known = self._known_at(view, addresses)
            is_derived &= known is None
            for x, index in (stored if known is None else known).items():
                whole = at.setdefault(x, np.full(result.data.shape, NOWHERE, np.int32))
                whole.reshape(-1)[lanes] = index
        at = without_tail(at, flow.sizes)
        number = flow.source("/".join(names), access.site, lines_behind(access.pointers))
        flow.sources[number].is_derived |= is_derived
        flow.sources[number].is_irregular |= not is_block(at)
        _reach(flow, number, at)
        origins = dict.fromkeys(at, frozenset([number]))
        flow.note(result, access.site, writers, Lanes(at, origins))

    def _store(self, access: Access) -> None:
        flow, data = self.flow, access.value.data
        (node, whole), behind = tile_of(access.value), lines_behind(access.pointers)
        # Neither rows nor keys where one axis is of both.
        is_mixed = whole.is_matrix and {*varying(whole.at["m"])} & {*varying(whole.at["n"])}
        known = whole.without({"m", "n"} if is_mixed else set()).at
        for view, lanes, addresses in access.parts:
            if node is None:
                if ((data == data.flat[0]) | (data != data)).all():
                    flow.empty[view.home] = access.site
                continue
            self._visit(view.home, whole, is_atomic=access.kind == "atomic")
            here = {x: index.reshape(-1)[lanes] for x, index in known.items()}
            due, of_lanes = self._known_at(view, addresses), Lanes(here, whole.origins)
            offsets = None if due else view.in_bytes(addresses)
            store = StoredTile(view.home, node, access.site, offsets, of_lanes, behind)
            flow.stores.append(store)
            if due and here:
                _compare(flow, store, view.name, due)
            self._leave(view, addresses, here, node)

    # --- the pairs of rows and keys in what is stored

    def _visit(self, home: int, lanes: Lanes, *, is_atomic: bool) -> None:
        found, visits = lanes.of_sum(), self.flow.visits
        if found is None:
            return
        for x in lanes.at.keys() & {"d", "e"}:
            if np.unique(lanes.at[x][lanes.at[x] >= 0]).size not in (0, self.flow.sizes[x]):
                self._apart.add(home)
        if home in self._apart:
            visits.pop(home, None)
            return
        kept, batch, index, counts = found
        if home not in visits:
            visits[home] = np.zeros([self.flow.sizes[x] for x in "bhmn"], np.int16)
        by_kept = visits[home] if kept == "m" else visits[home].swapaxes(2, 3)
        for b, i, count in zip(batch, index, counts, strict=True):
            heads = count.any(1) & (b >= 0) & (i >= 0)
            by_kept[b, heads, i] = count[heads] + (by_kept[b, heads, i] if is_atomic else 0)

    # --- the indices of elements

    def _known_at(self, view: View, addresses: Array) -> dict[str, Array] | None:
        letters, view = self.flow.axes(view), view.known or view
        if not letters:
            return None
        return indices_at(view.elements, letters, self.flow.sizes, view.in_elements(addresses))

    def _leave(
        self, view: View, addresses: Array, here: Mapping[str, Array], node: Node
    ) -> None:
        size = (view.high - view.home) // view.elements.itemsize
        if size > _LARGEST_SHADOW:
            return
        offsets = view.in_bytes(addresses) // view.elements.itemsize
        fits = (offsets >= 0) & (offsets < size)
        shadow = self._shadows.setdefault(view.home, {})
        for x, values in {**here, _NODE: np.full(len(offsets), node.number)}.items():
            if x not in shadow or len(shadow[x]) != size:
                shadow[x] = np.full(size, NOWHERE, np.int32)
            shadow[x][offsets[fits]] = values[fits]


# --- the lines behind addresses


def _keep_lines(step: Operation) -> None:
    of = step.of
    block = (of, of.base, of.strides) if hasattr(of, "materialize_pointers") else ()
    if lines := lines_behind(*block, *step.args):
        for result in step.results:
            _kept(result)[_LINES] = lines


def lines_behind(*values: Any) -> frozenset[int]:
    found = frozenset[int]()
    for value in values:
        for each in value if isinstance(value, (list, tuple)) else (value,):
            found |= _kept(each).get(_LINES, frozenset())
    return found


def _kept(value: Any) -> Any:
    if isinstance(value, Handle):
        return value.attr
    return vars(value) if hasattr(type(value), "materialize_pointers") else {}


# --- the indices of what is accessed


def _reach(flow: Flow, number: int, at: Mapping[str, Array]) -> None:
    source, letters, found = flow.sources[number], "", list[Array]()
    for x in filter(at.__contains__, "bhgmn"):
        index = at[x].reshape(-1)
        if (index >= 0).any():  # a letter without any known index is no axis of what is accessed
            reached = source.reached.setdefault(x, np.zeros(flow.sizes[x], bool))
            reached[index[index >= 0]] = True
        if x != "g" or "h" not in at:
            letters += x
            found.append(index)
    if source.filled is None:
        source.letters, source.filled = letters, np.zeros([flow.sizes[x] for x in letters], bool)
    # What kernels stored in a buffer of their own has those letters that it had then.
    if source.letters == letters and found:
        known = np.stack(found)
        source.filled[tuple(known[:, (known >= 0).all(0)])] = True


def place(flow: Flow, view: View, letters: str, is_alone: bool = True) -> None:
    """Compares what was stored before it was known; `is_alone`: no other result is in its storage."""
    for store in flow.stores:
        if store.home != view.home or store.offsets is None or not store.lanes.at:
            continue
        offsets = (store.offsets - (view.start - view.home)) // view.elements.itemsize
        due = indices_at(view.elements, letters, flow.sizes, offsets)
        if is_alone or any((index >= 0).any() for index in due.values()):
            _compare(flow, store, view.name, due)


def _compare(flow: Flow, store: StoredTile, name: str, due: Mapping[str, Array]) -> None:
    number = flow.source(name, store.site, store.behind)
    _reach(flow, number, due)
    flow.compare(store.lanes, Lanes(due, dict.fromkeys(due, frozenset([number]))), store.site)
