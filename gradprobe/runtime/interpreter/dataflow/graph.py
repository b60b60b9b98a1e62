"""Flow: each operation of interpreted Triton kernels as a node, with the indices of its lanes and its value's role.

A load gives every lane the index of the element that it read. What is rearranged keeps its indices, what meets lane by
lane must agree in them, and what a dot sums over must be the same on both sides. Where two tiles meet that do not
agree, one of the loads that they come from read another element than it should have.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter as shipped

from ....inputs.memory import Array, Unwritten
from ....targets.surroundings import replaced
from ..memory.findings import Line, is_between
from ..memory.views import REARRANGING, Handle, Method, View
from ..memory.watch import Memory, watched_memory
from .lanes import (
    NOWHERE,
    Cover,
    Lanes,
    Table,
    along,
    contracted,
    differ,
    is_block,
    joined,
    reduced,
    spread,
    together,
    without,
    without_tail,
)

if TYPE_CHECKING:
    from torch import Tensor

_KEY = "gradprobe node"
# Elements of a storage up to which it is kept what was stored where: 64 MiB a letter.
_LARGEST_SHADOW = 1 << 24
_MOVED = tuple(name for name in REARRANGING if name not in ("create_gather", "create_select"))
_UNARY = [
    "si_to_fp",
    "ui_to_fp",
    "fp_to_si",
    "fp_to_ui",
    "fp_ext",
    "fp_trunc",
    "int_cast",
    "fp_to_fp",
    "fabs",
    "iabs",
    "exp",
    "exp2",
    "log",
    "log2",
    "sqrt",
    "precise_sqrt",
    "rsqrt",
    "floor",
    "ceil",
    "sin",
    "cos",
    "erf",
]
_BINARY = [
    "fadd",
    "fsub",
    "fmul",
    "fdiv",
    "precise_divf",
    "add",
    "sub",
    "mul",
    "maximumf",
    "maxnumf",
    "maxsi",
    "minimumf",
    "minnumf",
    "and",
    "or",
    "fcmpOLT",
    "fcmpOGT",
    "fcmpOLE",
    "fcmpOGE",
    "fcmpOEQ",
    "fcmpONE",
    "fcmpUNE",
]
_SUMS = ("fadd", "add")
_LARGEST = ("maximumf", "maxnumf", "maxsi")


@dataclass(frozen=True)
class Site:
    """One operation of a kernel's source."""

    kernel: str
    lines: tuple[Line, ...]
    """The line in the kernel, then those in the functions that it called to get there."""
    operation: str
    instruction: int
    """Which of the innermost function, so that two operations of one line are two sites."""


@dataclass(frozen=True)
class Role:
    """What the value of a tile is."""

    name: str
    """"P", "dP - delta", ...; "" where it is nothing that is known."""
    factor: str = ""
    """By what constant it is multiplied: "scale", "log2(e)"."""
    note: str = ""
    """What keeps it from being that: "not 0 where masked"."""
    is_open: bool = False
    """Whether entries that are masked hold something, which a sum over them would take for right."""
    is_by_row: bool = False
    """Whether it is that times any factor, or less any number, of its row: right if what is made of it is."""

    @property
    def is_known(self) -> bool:
        return bool(self.name) and not self.note and not self.is_by_row

    @property
    def words(self) -> str:
        """`scale * dS`"""
        return f"{self.factor} * {self.name}" if self.factor else self.name


@dataclass(frozen=True)
class Source:
    """A line that loads from one tensor, or stores to it."""

    tensor: str
    site: Site


@dataclass(eq=False)
class Node:
    """What one operation came to, once."""

    site: Site
    operands: tuple[Node, ...]
    role: Role | None = None
    """None where its value was compared with nothing."""
    lacking: frozenset[int] = frozenset()
    """Of a dot: the loads that give it a part of what it sums over, not all dims."""
    tensor: str = ""
    """Of a load: what it reads."""
    number: int = 0
    """Its place among all, in the order in which they were made."""
    has_nan: bool = False
    used: bool = False
    """Whether something that is known was made of it."""


@dataclass(frozen=True)
class Tile:
    """What a handle of the interpreter holds."""

    node: Node
    lanes: Lanes | None
    """None where no index is known."""


@dataclass(frozen=True)
class Conflict:
    """Two tiles that met lane by lane, or in a dot's sum, and disagree in one index."""

    site: Site
    letter: str
    """Or two of them, m/n, where a dot sums over different axes."""
    left: frozenset[int]
    right: frozenset[int]
    """The loads that they come from."""
    example: tuple[int, int]


@dataclass(frozen=True)
class Stored:
    """One store, or atomic, of a tile whose origin is known."""

    home: int
    """The address of the storage."""
    node: Node
    site: Site


@dataclass
class Flow:
    """What was followed while it was open."""

    axes: Callable[[View], str]
    """The axis letters of a tensor; "" where they are not known."""
    sizes: Mapping[str, int]
    """By letter."""
    judge: Callable[[Array, Lanes], Role | None]
    conflicts: list[Conflict] = field(default_factory=list)
    agreed: Counter[tuple[int, str]] = field(default_factory=Counter)
    """By the number of a source and a letter, how often its indices agreed with another's."""
    irregular: set[int] = field(default_factory=set)
    """The loads that read outside their tensor, or a tile of it that is no block of rows and columns."""
    sources: list[Source] = field(default_factory=list)
    """By number: the lines that load, and those that store, whose indices are compared."""
    stores: list[Stored] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    visits: dict[int, Array] = field(default_factory=dict)
    """By home, [batch, heads, rows, keys]: how often each pair is in what was stored there."""
    memory: Memory | None = None
    failures: dict[str, None] = field(default_factory=dict)
    _numbers: dict[tuple[str, Site], int] = field(default_factory=dict)
    _tables: dict[tuple[int, int], Table] = field(default_factory=dict)
    _shadows: dict[int, dict[str, Array]] = field(default_factory=dict)
    _writers: dict[int, Array] = field(default_factory=dict)

    # --- loads and stores

    def _loading(self, original: Method) -> Method:
        def load(builder: Any, pointers: Any, mask: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(builder, pointers, mask, *args, **kwargs)
            self._trying(lambda: self._loaded(result, self._parts(pointers, mask)))
            return result

        return load

    def _storing(self, original: Method) -> Method:
        def store(builder: Any, pointers: Any, value: Any, mask: Any, *args: Any, **kwargs: Any) -> Any:
            self._trying(lambda: self._stored(value, self._parts(pointers, mask), is_atomic=False))
            return original(builder, pointers, value, mask, *args, **kwargs)

        return store

    def _changing(self, original: Method) -> Method:
        def atomic(builder: Any, op: Any, pointers: Any, value: Any, mask: Any, *args: Any, **kwargs: Any) -> Any:
            self._trying(lambda: self._stored(value, self._parts(pointers, mask), is_atomic=True))
            return original(builder, op, pointers, value, mask, *args, **kwargs)

        return atomic

    def _parts(self, pointers: Any, mask: Any) -> list[tuple[View, Array, Array]]:
        """For each tensor that is accessed: its view, the flat lanes, and their addresses."""
        assert self.memory is not None
        return self.memory.parts(pointers, mask.data if isinstance(mask, Handle) else mask)

    def _loaded(self, result: Any, parts: Sequence[tuple[View, Array, Array]]) -> None:
        at: dict[str, Array] = {}
        names: list[str] = []
        writers: list[Node] = []
        for view, lanes, addresses in parts:
            for letter, values in self._indices_of(view, addresses).items():
                at.setdefault(letter, np.full(result.data.size, NOWHERE, np.int32))[lanes] = values
            names.append(view.name)
            writers += self._writers_of(view, addresses)
        if not parts:
            return
        site, name = self._site("load"), "/".join(dict.fromkeys(names))
        number = self._number(name, site)
        origin = frozenset([number])
        known = {letter: values.reshape(result.data.shape) for letter, values in at.items()}
        known = without_tail(known, self.sizes)
        if not is_block(known):
            self.irregular.add(number)
        lanes = Lanes(known, dict.fromkeys(known, origin)) if known else None
        self._note(result, site, tuple(writers), lanes, tensor=name)

    def _number(self, tensor: str, site: Site) -> int:
        number = self._numbers.setdefault((tensor, site), len(self._numbers))
        if number == len(self.sources):
            self.sources.append(Source(tensor, site))
        return number

    def _stored(self, value: Any, parts: Sequence[tuple[View, Array, Array]], *, is_atomic: bool) -> None:
        tile = self.of(value)
        if tile is None:
            return
        site = self._site("atomic" if is_atomic else "store")
        for view, lanes, addresses in parts:
            self.stores.append(Stored(view.home, tile.node, site))
            here = {} if tile.lanes is None else {x: at.reshape(-1)[lanes] for x, at in tile.lanes.at.items()}
            found = self._indices_of(view, addresses) if self._letters(view) else {}
            if tile.lanes is not None and found:
                own = Lanes(here, tile.lanes.origins)
                number = frozenset([self._number(view.name, site)])
                self._compare(own, Lanes(found, dict.fromkeys(found, number)), site)
            self._leave(view, addresses, here, tile.node)
            if tile.lanes is not None:
                self._visit(view.home, tile.lanes, is_atomic)

    def _visit(self, home: int, lanes: Lanes, is_atomic: bool) -> None:
        """Notes which pairs of a row and a key are in what was stored."""
        cover = lanes.cover
        if cover is None or "b" not in lanes.at:
            return
        kept = {"m": "n", "n": "m"}[cover.letter]
        if kept not in lanes.at:
            return
        shape = tuple(self.sizes[x] for x in "bhmn")
        visits = self.visits.setdefault(home, np.zeros(shape, np.int16))
        axes = [axis for axis in range(lanes.at["b"].ndim) if axis != cover.axis]
        batch, index = (lanes.at[x].max(tuple(axes)) for x in ("b", kept))
        for lane in np.flatnonzero((batch >= 0) & (index >= 0)):
            counts, b, i = cover.counts[lane], batch[lane], index[lane]
            place = visits[b, :, i, :] if kept == "m" else visits[b, :, :, i]
            heads = counts.any(1)
            place[heads] = place[heads] + counts[heads] if is_atomic else counts[heads]

    def _letters(self, view: View) -> str:
        return self.axes(view.known or view)

    def _indices_of(self, view: View, addresses: Array) -> dict[str, Array]:
        owner = view.known or view
        letters = self.axes(owner)
        if not letters:
            offsets = _offsets(view.low, addresses, view.elements.itemsize)
            shadow = self._shadows.get(view.home, {})
            return {x: at[np.clip(offsets, 0, len(at) - 1)] for x, at in shadow.items()}
        key = (owner.start, owner.elements.span)
        if key not in self._tables:
            self._tables[key] = Table(owner, letters, self.sizes["h"] // self.sizes["g"])
        return self._tables[key].at(_offsets(owner.start, addresses, owner.elements.itemsize))

    def _leave(self, view: View, addresses: Array, here: Mapping[str, Array], node: Node) -> None:
        """Leaves in memory what was stored there: the indices, and the node."""
        size = (view.high - view.low) // view.elements.itemsize
        if size > _LARGEST_SHADOW:
            return
        offsets = _offsets(view.low, addresses, view.elements.itemsize)
        fits = (offsets >= 0) & (offsets < size)
        shadow = self._shadows.setdefault(view.home, {})
        for letter, values in here.items():
            if letter not in shadow or len(shadow[letter]) != size:
                shadow[letter] = np.full(size, NOWHERE, np.int32)
            shadow[letter][offsets[fits]] = values[fits]
        writers = self._writers.setdefault(view.home, np.full(size, NOWHERE, np.int32))
        if len(writers) == size:
            writers[offsets[fits]] = node.number

    def _writers_of(self, view: View, addresses: Array) -> list[Node]:
        writers = self._writers.get(view.home)
        if writers is None:
            return []
        offsets = _offsets(view.low, addresses, view.elements.itemsize)
        numbers = np.unique(writers[np.clip(offsets, 0, len(writers) - 1)])
        return [self.nodes[number] for number in numbers if number >= 0]

    # --- operations

    def patches(self) -> list[tuple[Any, str, Callable[[Method], Method]]]:
        """(owner, method name, wrapper) of each method of the interpreter that is wrapped."""
        builder = shipped.InterpreterBuilder

        def each(names: Sequence[str], wrapper: Callable[[str], Callable[[Method], Method]]) -> Iterator[Any]:
            return ((builder, f"create_{x}", wrapper(x)) for x in names if hasattr(builder, f"create_{x}"))

        return [
            (builder, "create_masked_load", self._loading),
            (builder, "create_masked_store", self._storing),
            (builder, "create_atomic_rmw", self._changing),
            *((builder, name, self._moving) for name in _MOVED),
            *each(_UNARY, lambda x: self._elementwise(x, (0,))),
            *each(_BINARY, lambda x: self._elementwise(x, (0, 1))),
            *each(["select"], lambda x: self._elementwise(x, (1, 2))),
            *each(["clampf"], lambda x: self._elementwise(x, (0,))),
            (builder, "create_fma", self._fusing),
            (builder, "create_dot", self._dotting),
            (shipped.ReduceOps, "apply_impl", self._reducing),
            (shipped.ScanOps, "apply_impl", self._scanning),
            (shipped, "_patch_lang_tensor", self._transposing),
        ]

    def of(self, handle: Any) -> Tile | None:
        """What a handle holds; None where it comes from no load."""
        return handle.attr.get(_KEY) if isinstance(handle, Handle) else None

    def _note(
        self, handle: Any, site: Site, operands: tuple[Node, ...], lanes: Lanes | None, *, tensor: str = "",
        lacking: frozenset[int] = frozenset(),
    ) -> None:  # fmt: skip
        lanes = spread(lanes, handle.data.shape) if lanes is not None else None
        role = self.judge(handle.data, lanes) if lanes is not None and handle.data.dtype.kind == "f" else None
        if role is not None and role.is_known:
            _mark_used(operands)
        has_nan = handle.data.dtype.kind == "f" and bool(np.isnan(handle.data).any())
        self._add(handle, Node(site, operands, role, lacking, tensor, has_nan=has_nan), lanes)

    def _add(self, handle: Any, node: Node, lanes: Lanes | None) -> None:
        node.number = len(self.nodes)
        self.nodes.append(node)
        handle.attr[_KEY] = Tile(node, lanes)

    def _trying(self, action: Callable[[], Any]) -> None:
        """A fault of following stops no kernel."""
        try:
            action()
        except Exception as error:
            self.failures[f"{type(error).__name__}: {error}"] = None

    def _moving(self, original: Method) -> Method:
        """What only moves lanes about makes no node of its own."""

        def method(builder: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(builder, *args, **kwargs)
            tiles = [self.of(arg) for arg in args]
            if any(tiles):
                self._trying(lambda: self._carry(result, original, builder, args, kwargs, tiles))
            return result

        return method

    def _carry(
        self, result: Any, original: Method, builder: Any, args: Any, kwargs: Any, tiles: list[Tile | None]
    ) -> None:
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
            moved = original(builder, *stand_ins, **kwargs)
            for each, out in zip(found, moved if isinstance(moved, tuple) else (moved,), strict=True):
                each[letter] = out.data
        origins = {
            x: frozenset[int]().union(*(lanes.origins.get(x, frozenset()) for lanes in known if lanes)) for x in letters
        }
        for handle, at in zip(results, found, strict=True):
            lanes = Lanes(at, origins, _kept_cover(moved_tiles, handle)) if at else None
            if len(moved_tiles) == 1:  # the same value, elsewhere
                handle.attr[_KEY] = Tile(moved_tiles[0].node, lanes)
            else:
                self._note(handle, self._site("join"), _nodes(moved_tiles), lanes)

    def _elementwise(self, name: str, operands: tuple[int, ...]) -> Callable[[Method], Method]:
        def wrapper(original: Method) -> Method:
            def method(builder: Any, *args: Any, **kwargs: Any) -> Any:
                result = original(builder, *args, **kwargs)
                tiles = [self.of(args[number]) for number in operands]
                if any(tiles):
                    self._trying(lambda: self._met(result, name, tiles))
                return result

            return method

        return wrapper

    def _met(self, result: Any, name: str, tiles: Sequence[Tile | None]) -> None:
        if name == "fmul" and not all(tiles) and not result.data.any():
            return  # an accumulator that holds nothing yet, rescaled
        site = self._site(name)
        lanes = self._together([tile.lanes if tile else None for tile in tiles], name, site)
        self._note(result, site, _nodes(tiles), lanes)

    def _together(self, lanes: Sequence[Lanes | None], name: str, site: Site) -> Lanes | None:
        known = [one for one in lanes if one is not None]
        if len(known) < 2:
            return known[0] if known else None
        left, right = known
        is_sum = name in _SUMS
        both = left.cover is not None and right.cover is not None
        if is_sum and both:
            # A sum may go on over heads or batches, whose index it then loses.
            shared = left.at.keys() & right.at.keys()
            apart = {x for x in shared if differ(left.at[x], right.at[x]) is not None} & {"h", "b"}
            left, right = without(left, apart), without(right, apart)
        self._compare(left, right, site)
        if both and (is_sum or name in _LARGEST):
            cover = together(left.cover, right.cover, is_sum=is_sum)
        else:
            cover = left.cover if left.cover is not None and left.at.keys() >= right.at.keys() else right.cover
            cover = left.cover if right.cover is None else cover
        return joined(left, right, cover)

    def _fusing(self, original: Method) -> Method:
        def fma(builder: Any, x: Any, y: Any, z: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(builder, x, y, z, *args, **kwargs)
            if any(tiles := [self.of(x), self.of(y), self.of(z)]):
                self._trying(lambda: self._fused(result, tiles))
            return result

        return fma

    def _fused(self, result: Any, tiles: Sequence[Tile | None]) -> None:
        site = self._site("fma")
        x, y, z = (tile.lanes if tile else None for tile in tiles)
        lanes = self._together([self._together([x, y], "fmul", site), z], "fadd", site)
        self._note(result, site, _nodes(tiles), lanes)

    def _dotting(self, original: Method) -> Method:
        def dot(builder: Any, a: Any, b: Any, d: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(builder, a, b, d, *args, **kwargs)
            tiles = [self.of(a), self.of(b), self.of(d)]
            if any(tiles):
                self._trying(lambda: self._dotted(result, a.data.shape, b.data.shape, tiles))
            return result

        return dot

    def _dotted(self, result: Any, shape_a: Any, shape_b: Any, tiles: Sequence[Tile | None]) -> None:
        site, (a, b, d) = self._site("dot"), tiles
        product = None
        if len(shape_a) == 2:
            product = self._product(site, a.lanes if a else None, b.lanes if b else None, (shape_a[0], shape_b[1]))
        lanes = self._together([product, d.lanes if d else None], "fadd", site)
        lacking = frozenset[int]().union(*(self._lacking(one.lanes) for one in (a, b) if one is not None))
        self._note(result, site, _nodes(tiles), lanes, lacking=lacking)

    def _lacking(self, lanes: Lanes | None) -> frozenset[int]:
        """The loads of an operand of a dot that hold a part of its dims alone."""
        dims = next((x for x in "de" if lanes is not None and x in lanes.at), "")
        if lanes is None or not dims or lanes.cover is not None:
            return frozenset()
        count = len(np.unique(lanes.at[dims][lanes.at[dims] >= 0]))
        return lanes.origins[dims] if 0 < count < self.sizes[dims] else frozenset()

    def _product(self, site: Site, a: Lanes | None, b: Lanes | None, shape: tuple[int, int]) -> Lanes | None:
        if a is None and b is None:
            return None
        at: dict[str, Array] = {}
        origins: dict[str, frozenset[int]] = {}
        summed: list[dict[str, Array | None]] = [{}, {}]
        for lanes, axis, side in ((a, 1, 0), (b, 0, 1)):
            for letter, values in lanes.at.items() if lanes else ():
                kept = along(values, axis)
                if kept is None:
                    summed[side][letter] = along(values, 1 - axis)
                    continue
                whole = np.broadcast_to(kept[:, None] if axis == 1 else kept[None, :], shape)
                one = Lanes({letter: whole}, {letter: lanes.origins[letter]}) if lanes else None
                if letter in at and one is not None:
                    self._compare(Lanes({letter: at[letter]}, {letter: origins[letter]}), one, site)
                    whole = np.where(at[letter] < 0, whole, at[letter])
                at[letter] = np.array(whole)
                origins[letter] = origins.get(letter, frozenset()) | (lanes.origins[letter] if lanes else frozenset())
        self._compare_sums(a, b, summed, site)
        cover = None
        for lanes, axis in ((a, 1), (b, 0)):
            if lanes is not None and lanes.is_matrix:
                cover = contracted(lanes, axis, self.sizes)
        if any("m" in one for one in summed) or (cover is not None and cover.letter == "m"):
            at.pop("h", None)
        return Lanes(at, {x: origins[x] for x in at}, cover) if at else None

    def _compare_sums(self, a: Lanes | None, b: Lanes | None, summed: list[dict[str, Any]], site: Site) -> None:
        """What a dot sums over must be the same axis, element by element."""
        if a is None or b is None:
            return
        left, right = summed
        for letter in left.keys() & right.keys():
            if left[letter] is not None and right[letter] is not None:
                one = Lanes({letter: left[letter]}, {letter: a.origins[letter]})
                self._compare(one, Lanes({letter: right[letter]}, {letter: b.origins[letter]}), site)
            elif left[letter] is not None or right[letter] is not None:
                # One side has another index in each column, so that most of them differ.
                apart = Conflict(site, letter, a.origins[letter], b.origins[letter], (NOWHERE, NOWHERE))
                self.conflicts.append(apart)
        x, y = (next((letter for letter in "mnde" if letter in side), "") for side in summed)
        if x and y and not left.keys() & right.keys():
            self.conflicts.append(Conflict(site, f"{x}/{y}", a.origins[x], b.origins[y], (NOWHERE, NOWHERE)))

    def _reducing(self, original: Method) -> Method:
        def reduce(operation: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(operation, inputs, *args, **kwargs)
            tile = self.of(inputs[0].handle)
            if tile is not None:
                results = result if isinstance(result, (tuple, list)) else (result,)
                self._trying(lambda: self._reduced(results, tile, operation.axis))
            return result

        return reduce

    def _reduced(self, results: Sequence[Any], tile: Tile, axis: int | None) -> None:
        site = self._site("reduce")
        for each in results:
            lanes = None
            if tile.lanes is not None and axis is not None:
                lanes = reduced(tile.lanes, axis, each.handle.data.shape, self.sizes)
            self._note(each.handle, site, (tile.node,), lanes)

    def _scanning(self, original: Method) -> Method:
        def scan(operation: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(operation, inputs, *args, **kwargs)
            tile = self.of(inputs[0].handle)
            for each in result if isinstance(result, (tuple, list)) else (result,):
                if tile is not None:
                    self._note(each.handle, self._site("scan"), (tile.node,), tile.lanes)
            return result

        return scan

    def _transposing(self, original: Method) -> Method:
        def patch(tensor: Any, scope: Any) -> None:
            original(tensor, scope)
            plain = tensor.T.fget

            def transposed(this: Any) -> Any:
                result = plain(this)
                tile = self.of(this.handle)
                if tile is not None:
                    result.handle.attr[_KEY] = Tile(tile.node, tile.lanes.moved(np.transpose) if tile.lanes else None)
                return result

            tensor.T = property(transposed)

        return patch

    def _compare(self, left: Lanes, right: Lanes, site: Site) -> None:
        for letter in left.at.keys() & right.at.keys():
            example = differ(left.at[letter], right.at[letter])
            if example is not None:
                self.conflicts.append(Conflict(site, letter, left.origins[letter], right.origins[letter], example))
            else:
                self.agreed.update((number, letter) for number in left.origins[letter] | right.origins[letter])

    def _site(self, operation: str) -> Site:
        assert self.memory is not None
        lines, instruction = _executing(self.memory.code)
        return Site(self.memory.kernel, lines, operation, instruction)


def _nodes(tiles: Sequence[Tile | None]) -> tuple[Node, ...]:
    return tuple(tile.node for tile in tiles if tile is not None)


def _mark_used(nodes: Sequence[Node]) -> None:
    """Notes that something known was made of these, and of what they were made of."""
    for node in nodes:
        if not node.used:
            node.used = True
            if node.role is None or not node.role.is_known:
                _mark_used(node.operands)


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


def _offsets(start: int, addresses: Array, itemsize: int) -> Array:
    return (addresses.astype(np.int64) - np.int64(start)) // itemsize


def _executing(kernel: CodeType | None) -> tuple[tuple[Line, ...], int]:
    """The lines that are executing, that of the kernel first, and the innermost function's instruction."""
    lines: list[Line] = []
    instruction = -1
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code is kernel or not is_between(frame.f_code.co_filename):
            instruction = frame.f_lasti if not lines else instruction
            lines.append((frame.f_code, frame.f_lineno))
        if frame.f_code is kernel:
            return tuple(reversed(lines)), instruction
        frame = frame.f_back
    return tuple(lines[:1]), instruction


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
                flow._trying(lambda argument=argument: learn(argument))  # type: ignore[misc]
            return original(executor, args, kwargs)

        return init_args

    with watched_memory(tensors, Unwritten()) as memory, contextlib.ExitStack() as stack:
        flow.memory = memory
        for owner, name, wrapper in (*flow.patches(), (shipped.GridExecutor, "_init_args_hst", learning)):
            stack.enter_context(replaced(owner, name, wrapper(getattr(owner, name))))
        yield flow
