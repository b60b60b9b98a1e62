"""Run: what one layout of a check came to."""

from collections.abc import Iterable
from math import isfinite

import msgspec
from msgspec import Struct

from .memory_finding import WARNING, MemoryFinding
from .number import Number

MATCH, MISMATCH, INHERITED, SKIPPED = "match", "mismatch", "inherited", "skipped"
FAILED, CRASHED, INCOMPLETE = "error", "crashed", "incomplete"
NOT_EXPOSED = "not exposed"
Ranges = tuple[tuple[int, int], ...]  # inclusive


def seen_in(name: str, kernel: str | None) -> str:
    return f"{name} in {kernel}" if kernel else name


def _or_infinite(ratio: Number | None) -> float:
    return float("inf") if ratio is None else ratio


class Window(Struct, frozen=True):
    rows: tuple[int, ...]
    cols: tuple[int, ...]
    actual: tuple[tuple[Number, ...], ...]
    expected: tuple[tuple[Number, ...], ...]


class Element(Struct, frozen=True, kw_only=True):
    """An index is None along an axis that the intermediate lacks."""

    intermediate: str
    batch: int | None
    head: int | None
    row: int | None
    col: int | None
    tile: tuple[int | None, int | None]  # (m, n)
    actual: Number | None
    expected: Number | None
    budget: Number | None
    masked: bool | None = None
    window: Window | None = None
    kernel: str | None = None
    shard: int | None = None
    rank: int | None = None
    step: int | None = None
    largest: Number | None = None
    inseparable: tuple[str, ...] = ()
    """Others that what was recovered does not tell apart."""

    @property
    def accused(self) -> str:
        """`dP or delta` where nothing tells which is wrong."""
        return " or ".join((self.intermediate, *self.inseparable))

    @property
    def title(self) -> str:
        return seen_in(self.intermediate, self.kernel)

    @property
    def _off(self) -> float:
        if self.actual is None or self.expected is None:
            return float("nan")
        return abs(self.actual - self.expected)

    @property
    def error(self) -> float | None:
        return self._off if isfinite(self._off) else None

    @property
    def ratio(self) -> float:
        if not self.budget or self._off != self._off:
            return float("inf")
        return self._off / self.budget


class Head(Struct, frozen=True, kw_only=True):
    batch: int | None
    head: int
    status: str
    mismatched: int = 0
    max_budget_ratio: Number | None = None
    rows: Ranges = ()
    keys: Ranges = ()

    @property
    def ratio(self) -> float:
        return _or_infinite(self.max_budget_ratio)


class Intermediate(Struct, frozen=True, kw_only=True):
    name: str
    status: str
    source: str | None = None  # exported, tapped, seen or recovered
    kernel: str | None = None
    dtype: str | None = None
    reading_adds: Number | None = None
    mismatched: int = 0
    total: int = 0
    non_finite: int = 0
    max_abs_err: Number | None = None
    max_budget_ratio: Number | None = None
    length: int | None = None
    shown: Ranges = ()  # all if empty
    heads: tuple[Head, ...] = ()

    @property
    def title(self) -> str:
        return seen_in(self.name, self.kernel)

    @property
    def ratio(self) -> float:
        return _or_infinite(self.max_budget_ratio)

    @property
    def count(self) -> int:
        return len({head.head for head in self.heads})

    def having(self, status: str) -> list[Head]:
        return [head for head in self.heads if head.status == status]


class Difference(Struct, frozen=True, kw_only=True):
    layout: str
    name: str
    total: int
    differing: int = 0
    beyond: int = 0
    max_budget_ratio: Number | None = None
    heads: tuple[int, ...] = ()
    first: Element | None = None
    other: Number | None = None


class Identity(Struct, frozen=True, kw_only=True):
    name: str  # "I4 <V, dV> = <O, dO>"
    of: str = "target"
    holds: bool
    residual: Number | None
    budget: Number | None

    @property
    def key(self) -> str:
        return self.name.split()[0]

    @property
    def ratio(self) -> float:
        if self.residual is None or not self.budget:
            return float("inf")
        return self.residual / self.budget


class Error(Struct, frozen=True, kw_only=True):
    kind: str
    message: str
    details: tuple[str, ...] = ()
    way_out: str = ""
    file: str | None = None
    line: int | None = None
    function: str | None = None
    code: str | None = None
    words: str = ""
    stderr_tail: str = ""
    stack: str = ""
    memory: tuple[MemoryFinding, ...] = ()

    def trace(self, is_asked_for: bool) -> list[str]:
        return self.stack.splitlines() if is_asked_for or self.file is None else []


class Counts(Struct, frozen=True):
    heads: int = 0
    rows: int = 0
    elements: int = 0
    intermediates: int = 0


def add_counts(counts: Iterable[Counts]) -> Counts:
    sums = (sum(numbers) for numbers in zip(*map(msgspec.structs.astuple, counts), strict=True))
    return Counts(*sums)


# Of a survey of layouts: what lies in one.
ALONE, TOGETHER, PROGRAM = "one tensor", "all tensors", "program"


class SurveyedLayout(Struct, frozen=True, kw_only=True):
    kind: str
    row: str = ""
    layout: str = ""
    thorough: bool = True
    hazard: str = ""


class Line(Struct, frozen=True, kw_only=True):
    kernel: str
    file: str
    line: int
    code: str


class RepeatedResult(Struct, frozen=True, kw_only=True):
    """Unlike in repeated runs, or wrong in one."""

    name: str
    runs: int
    differing: int = 0
    total: int = 0
    heads: tuple[tuple[int | None, int], ...] = ()
    tiles: Ranges = ()
    block: int = 0
    spread: Number | None = None
    """The largest difference as a multiple of what is allowed."""
    atomics: tuple[Line, ...] = ()
    wrong_in: int = 0
    wrong_heads: tuple[tuple[int | None, int], ...] = ()
    wrong_spread: Number | None = None


class TensorLayout(Struct, frozen=True, kw_only=True):
    name: str
    axes: str
    sizes: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def repeats(self) -> bool:
        axes = zip(self.sizes, self.strides, strict=True)
        return any(size > 1 and step == 0 for size, step in axes)


class Run(Struct, frozen=True, kw_only=True):
    layout: str
    verdict: str
    skipped: str | None = None
    precision: str = ""
    undecided: int = 0  # entries on the ReLU's kink, where either side is right
    coarser: tuple[str, ...] = ()
    memory: tuple[MemoryFinding, ...] = ()
    inside: tuple[str, ...] = ()
    intermediates: tuple[Intermediate, ...] = ()
    """In dataflow order; of kernels before gradients."""
    first_mismatch: Element | None = None
    compared: Counts = Counts()
    invariants: tuple[Identity, ...] = ()
    repeats: int = 0
    repeated: tuple[RepeatedResult, ...] = ()
    error: Error | str | None = None
    severity: str | None = None
    copied: tuple[str, ...] = ()
    tried: SurveyedLayout | None = None
    laid: tuple[TensorLayout, ...] = ()

    @property
    def is_plain(self) -> bool:
        return ", " not in self.layout

    @property
    def compares(self) -> tuple[Intermediate, ...]:
        return tuple(one for one in self.intermediates if one.status != NOT_EXPOSED)

    @property
    def is_wrong(self) -> bool:
        """Of a survey also what ended its process where memory tells why."""
        is_ended = self.verdict == FAILED and self.tried is not None and bool(self.memory)
        return self.severity != WARNING and (self.verdict == MISMATCH or is_ended)

    @property
    def effort(self) -> int:
        """How little a layout of a survey tells alone."""
        kinds = (ALONE, PROGRAM, TOGETHER)
        return kinds.index(self.tried.kind) if self.tried and self.layout != "contiguous" else -1

    @property
    def is_judged(self) -> bool:
        return bool(self.compares or self.invariants)

    @property
    def absent(self) -> tuple[str, ...]:
        return tuple(one.name for one in self.intermediates if one.status == NOT_EXPOSED)

    @property
    def broken(self) -> list[Identity]:
        return [one for one in self.invariants if one.of == "target" and not one.holds]

    @property
    def has_wrong_elements(self) -> bool:
        return any(one.mismatched for one in self.intermediates)

    @property
    def told_error(self) -> tuple[str, str] | None:
        if self.verdict not in (FAILED, CRASHED):
            return None
        if isinstance(self.error, Error):
            return self.error.kind, self.error.message
        return "TargetFailure", self.error or self.skipped or "the run came to an error"


class CloseUpRow(Struct, frozen=True, kw_only=True):
    row: int
    mismatched: int
    col: int
    actual: Number | None
    expected: Number | None
    ratio: Number | None


class CloseUp(Struct, frozen=True, kw_only=True):
    layout: str
    intermediate: str
    batch: int | None
    head: int
    mismatched: int
    total: int
    shape: tuple[int, int]
    tile: tuple[int, int]
    map: tuple[tuple[Number | None, ...], ...]
    """The worst multiple of the budget; None where all is masked."""
    lines: tuple[int, ...] = ()
    """Their row tiles, where not all rows were recovered."""
    rows: tuple[CloseUpRow, ...]
    element: Element
