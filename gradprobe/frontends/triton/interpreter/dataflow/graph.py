"""Each operation of interpreted kernels as a node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from .....inputs.memory import Array
from .....source.syntax import SourceLine
from ..bfloat16 import values_of
from ..plans import Handle
from ..views import Site, View
from .lanes import NOWHERE, UNKNOWN, Lanes, differ

# Under which handles keep what they hold.
TILE = "gradprobe tile"
# The operations that only round.
CASTS = ("fp_ext", "fp_trunc", "fp_to_fp")


@dataclass(frozen=True)
class Role:
    # "P", "dP - delta", ...; "" of nothing that is known.
    name: str
    # By what constant it is multiplied: "scale", "log2(e)".
    factor: str = ""
    is_masked: bool = True  # whether it is 0 where it is to be masked
    # Whether masked entries hold something that a sum would take in.
    is_open: bool = False
    # Whether it is that times a factor of its row, or less a number.
    is_by_row: bool = False

    @property
    def is_known(self) -> bool:
        return bool(self.name) and self.is_masked and not self.is_by_row

    @property
    def formula(self) -> str:
        return f"{self.factor} * {self.name}" if self.factor else self.name


@dataclass(eq=False)
class AccessLine:
    tensor: str
    site: Site
    behind: frozenset[int] = frozenset()  # the lines that made its addresses
    is_irregular: bool = False  # whether it loads no block of rows and columns
    is_derived: bool = False  # whether its indices are of what an earlier kernel stored
    # By letter, how often it agreed with another.
    agreed: Counter[str] = field(default_factory=Counter)
    # By letter but dims, [length] bool: the indices that it touches.
    reached: dict[str, Array] = field(default_factory=dict)
    letters: str = ""
    filled: Array = None  # bool, of the axes of these letters: what it touches

    @property
    def is_load(self) -> bool:
        return self.site.operation == "load"


@dataclass(eq=False)
class Node:
    site: Site
    operands: tuple[Node, ...]
    role: Role | None = None  # None where its value was compared with nothing
    # The loads that give a dot a part of what it should sum over.
    lacking: frozenset[int] = frozenset()
    number: int = 0
    used: bool = False  # whether something that is known was made of it
    value: Array | None = None  # of scores and of vectors: what it came to
    lanes: Lanes = UNKNOWN

    @property
    def name(self) -> str:
        return self.role.name if self.role is not None else ""

    @property
    def is_known(self) -> bool:
        return self.role is not None and self.role.is_known


class Tile(NamedTuple):
    node: Node | None = None
    lanes: Lanes = UNKNOWN


def tile_of(handle: Any) -> Tile:
    return handle.attr.get(TILE, Tile()) if isinstance(handle, Handle) else Tile()


@dataclass(frozen=True)
class Conflict:
    site: Site
    letter: str  # or two of them, m/n, where a dot sums over different axes
    left: frozenset[int]
    right: frozenset[int]
    example: tuple[int, int] = (NOWHERE, NOWHERE)


@dataclass(frozen=True)
class StoredTile:
    home: int
    node: Node
    site: Site
    # [lanes] int64, bytes from the storage's start; None where the tensor's axes were known.
    offsets: Array | None = None
    lanes: Lanes = UNKNOWN
    behind: frozenset[int] = frozenset()


@dataclass(eq=False)
class Flow:
    """Lines that load or store are numbered as in `sources`."""

    # The axis letters of a tensor; "" where they are not known.
    axes: Callable[[View], str]
    sizes: Mapping[str, int]
    judge: Callable[[Array, Lanes], Role | None] = lambda data, lanes: None
    sources: list[AccessLine] = field(default_factory=list)
    conflicts: list[Conflict] = field(default_factory=list)
    # By their numbers, each with the calls that led there.
    lines: list[tuple[SourceLine, ...]] = field(default_factory=list)
    stores: list[StoredTile] = field(default_factory=list)
    # By home, the last store of one number that comes from no load.
    empty: dict[int, Site] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    # By home, [batch, heads, rows, keys]: how often each pair is in what was stored there.
    visits: dict[int, Array] = field(default_factory=dict)
    failures: dict[str, None] = field(default_factory=dict)
    _numbers: dict[object, int] = field(default_factory=dict)

    def line(self, lines: tuple[SourceLine, ...]) -> int:
        number = self._numbers.setdefault(lines, len(self.lines))
        self.lines += [lines] if number == len(self.lines) else []
        return number

    def source(self, tensor: str, site: Site, behind: frozenset[int]) -> int:
        number = self._numbers.setdefault((tensor, site), len(self.sources))
        self.sources += [AccessLine(tensor, site)] if number == len(self.sources) else []
        self.sources[number].behind |= behind
        return number

    def compare(self, left: Lanes, right: Lanes, site: Site) -> None:
        # A set's order is another in each process.
        for x in sorted(left.at.keys() & right.at.keys()):
            loads = left.origins[x], right.origins[x]
            if (example := differ(left.at[x], right.at[x])) is not None:
                self.conflicts.append(Conflict(site, x, *loads, example))
            for number in loads[0] | loads[1] if example is None else ():
                self.sources[number].agreed[x] += 1

    def note(
        self, handle: Any, site: Site, operands: Sequence[Node], lanes: Lanes, lacking: Iterable[int] = ()
    ) -> None:  # fmt: skip
        data, at = handle.data, dict(lanes.at)
        for x, index in at.items():
            at[x] = index if index.shape == data.shape else np.broadcast_to(index, data.shape)
        lanes, made_of = replace(lanes, at=at), tuple(operands)
        node = Node(site, made_of, None, frozenset(lacking), len(self.nodes), lanes=lanes)
        # The interpreter keeps the bits of bfloat16.
        if data.dtype == np.uint16 and handle.dtype.scalar.is_bf16():
            data = values_of(data)
        if data.dtype.kind == "f":
            node.role = self.judge(data, lanes)
            has_dims = not lanes.is_matrix and not at.keys().isdisjoint("de")
            if data.ndim == 1 or (data.ndim == 2 and not has_dims):
                node.value = data
        self.nodes.append(node)
        handle.attr[TILE] = Tile(node, lanes)
        pending = [*node.operands] if node.is_known else []
        while pending:
            operand = pending.pop()
            if not operand.used:
                operand.used = True
                pending += () if operand.is_known else operand.operands


def behind(
    nodes: Iterable[Node], made_of: Callable[[Node], Iterable[Node]] | None = None
) -> Iterator[Node]:
    """Nodes and what they were made of, each once, the nearest first."""
    pending, seen = [*nodes], set[Node]()
    for node in pending:
        if node not in seen:
            seen.add(node)
            yield node
            pending += node.operands if made_of is None else made_of(node)
