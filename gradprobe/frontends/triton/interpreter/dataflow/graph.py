"""Graph: each operation of interpreted Triton kernels as a node, with the indices of its lanes and its value's role.

What meets lane by lane must agree in its indices. Where it does not, one of the loads that it comes from read another
element than it should have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from .....inputs.memory import Array
from .....source.text import SourceLine
from ..bfloat16 import values_of
from ..memory.stream import attempted, executing
from ..memory.views import Access, InterpretedLaunch, View
from ..patching import Handle
from .lanes import Lanes, differ

TILE = "gradprobe tile"
"""Under which handles of the interpreter keep what they hold."""
CASTS = ("fp_ext", "fp_trunc", "fp_to_fp")
"""The operations that leave numbers what they are, but for a rounding."""


@dataclass(frozen=True)
class Site:
    """One operation of a kernel's source."""

    kernel: str
    lines: tuple[SourceLine, ...]
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
    is_masked: bool = True
    """Whether it is 0 where it is to be masked; else it is not right."""
    is_open: bool = False
    """Whether entries that are masked hold something, which a sum over them would take for right."""
    is_by_row: bool = False
    """Whether it is that times any factor, or less any number, of its row: right if what is made of it is."""

    @property
    def is_known(self) -> bool:
        return bool(self.name) and self.is_masked and not self.is_by_row

    @property
    def formula(self) -> str:
        """`scale * dS`"""
        return f"{self.factor} * {self.name}" if self.factor else self.name


@dataclass(frozen=True)
class AccessLine:
    """A line that loads from one tensor, or stores to it."""

    tensor: str
    site: Site

    @property
    def is_load(self) -> bool:
        return self.site.operation == "load"


@dataclass(eq=False)
class Node:
    """What one operation came to, once."""

    site: Site
    operands: tuple[Node, ...]
    role: Role | None = None
    """None where its value was compared with nothing."""
    lacking: frozenset[int] = frozenset()
    """Of a dot: the loads that give it a part of what it should sum over."""
    number: int = 0
    """Its place among all, in the order in which they were made."""
    used: bool = False
    """Whether something that is known was made of it."""
    value: Array | None = None
    """Of scores and of vectors: what it came to."""
    lanes: Lanes | None = None
    """The indices of that."""

    @property
    def name(self) -> str:
        """What its value is; "" of what is nothing that is known, and of what was compared with nothing."""
        return self.role.name if self.role is not None else ""

    @property
    def is_known(self) -> bool:
        return self.role is not None and self.role.is_known


class Tile(NamedTuple):
    """What a handle of the interpreter holds."""

    node: Node
    lanes: Lanes | None
    """None where no index is known."""


def tile_of(handle: Any) -> Tile | None:
    """What a handle holds; None where it comes from no load."""
    return handle.attr.get(TILE) if isinstance(handle, Handle) else None


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
class StoredTile:
    """One store, or atomic, of a tile whose origin is known."""

    home: int
    """The address of the storage."""
    node: Node
    site: Site
    offsets: Array | None = None
    """[lanes] int64, bytes from the start of the storage; None where the tensor's axes were known."""
    lanes: Lanes | None = None
    """[lanes], of what was stored."""
    behind: frozenset[int] = frozenset()
    """The lines that made the addresses."""


@dataclass
class Flow:
    """What was followed while it was open. Lines that load or store are numbered as in `sources`."""

    axes: Callable[[View], str]
    """The axis letters of a tensor; "" where they are not known."""
    sizes: Mapping[str, int]
    """By letter."""
    judge: Callable[[Array, Lanes], Role | None]
    sources: list[AccessLine] = field(default_factory=list)
    conflicts: list[Conflict] = field(default_factory=list)
    agreed: Counter[tuple[int, str]] = field(default_factory=Counter)
    """By source and letter, how often its indices agreed with another's."""
    irregular: set[int] = field(default_factory=set)
    """The loads that read outside their tensor, or a tile of it that is no block of rows and columns."""
    derived: set[int] = field(default_factory=set)
    """The loads whose indices are those of what an earlier kernel stored there."""
    slices: dict[int, frozenset[int]] = field(default_factory=dict)
    """By source, the lines that made its addresses."""
    lines: list[tuple[SourceLine, ...]] = field(default_factory=list)
    """Those, by their numbers: each with the calls that led there."""
    stores: list[StoredTile] = field(default_factory=list)
    empty: dict[int, Site] = field(default_factory=dict)
    """By home, the last store of one number throughout that no load was made into."""
    nodes: list[Node] = field(default_factory=list)
    visits: dict[int, Array] = field(default_factory=dict)
    """By home, [batch, heads, rows, keys]: how often each pair is in what was stored there, of all dims at once."""
    reached: dict[tuple[int, str], Array] = field(default_factory=dict)
    """By source and letter but those of dims, [length] bool: the indices that it loads or stores."""
    filled: dict[int, tuple[str, Array]] = field(default_factory=dict)
    """By source, its letters but those of dims, and of these axes: what it loads or stores."""
    launch: InterpretedLaunch | None = None
    """The last that began."""
    failures: dict[str, None] = field(default_factory=dict)
    _numbers: dict[object, int] = field(default_factory=dict)

    def attempt(self, action: Callable[..., object], *args: Any) -> None:
        """A fault of following stops no kernel."""
        attempted(self.failures, action, *args)

    def site(self, operation: str) -> Site:
        """The operation that is executing."""
        assert self.launch is not None
        lines, instruction = executing(self.launch.code)
        return Site(self.launch.kernel, lines, operation, instruction)

    @staticmethod
    def site_of(access: Access) -> Site:
        return Site(access.launch.kernel, access.lines, access.kind, access.instruction)

    def line(self) -> int:
        """The number of the line that is executing."""
        return self._number(self.site("").lines, self.lines)

    def number(self, tensor: str, site: Site, behind: frozenset[int]) -> int:
        """The number of the line that accesses a tensor, by an address that some lines made."""
        number = self._number(AccessLine(tensor, site), self.sources)
        self.slices[number] = self.slices.get(number, frozenset()) | behind
        return number

    def _number(self, thing: object, among: list[Any]) -> int:
        number = self._numbers.setdefault(thing, len(among))
        if number == len(among):
            among.append(thing)
        return number

    def compare(self, left: Lanes, right: Lanes, site: Site) -> None:
        """Notes in which indices two tiles agree that met, and in which they do not."""
        for x in sorted(left.at.keys() & right.at.keys()):  # a set's order is another in each process
            example = differ(left.at[x], right.at[x])
            if example is not None:
                self.conflicts.append(Conflict(site, x, left.origins[x], right.origins[x], example))
            else:
                self.agreed.update((number, x) for number in left.origins[x] | right.origins[x])

    def note(
        self, handle: Any, site: Site, operands: Iterable[Node], lanes: Lanes | None, lacking: Iterable[int] = ()
    ) -> None:
        """Makes a node of what an operation came to."""
        data = handle.data
        if lanes is not None:  # numpy has broadcast what met
            at = dict(lanes.at)
            for x, index in at.items():
                at[x] = index if index.shape == data.shape else np.broadcast_to(index, data.shape)
            lanes = replace(lanes, at=at)
        node = Node(site, tuple(operands), lanes=lanes, lacking=frozenset(lacking), number=len(self.nodes))
        if data.dtype == np.uint16 and handle.dtype.scalar.is_bf16():  # the interpreter keeps its bits
            data = values_of(data)
        if data.dtype.kind == "f":
            node.role = self.judge(data, lanes) if lanes is not None else None
            has_dims = lanes is not None and not lanes.is_matrix and not lanes.at.keys().isdisjoint("de")
            if data.ndim == 1 or (data.ndim == 2 and not has_dims):  # it may be scores, or numbers of rows
                node.value = data
        self.nodes.append(node)
        handle.attr[TILE] = Tile(node, lanes)
        pending = [*node.operands] if node.is_known else []
        while pending:
            operand = pending.pop()
            if not operand.used:
                operand.used = True
                pending += () if operand.is_known else operand.operands


def behind(nodes: Iterable[Node], made_of: Callable[[Node], Iterable[Node]] | None = None) -> Iterator[Node]:
    """Some nodes and what they were made of, each once, the nearest first.

    Args:
        made_of: what of it; None for all operands.
    """
    pending, seen = [*nodes], set[Node]()
    for node in pending:
        if node not in seen:
            seen.add(node)
            yield node
            pending += node.operands if made_of is None else made_of(node)
