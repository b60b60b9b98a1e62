"""The table of what people get wrong in a kernel, read both ways: what plants each fault, and what may undo it."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from ..kernel_file import Change, KernelFile
from . import grammar, name_kinds, plants
from .patterns import Found, Swap, fitting, swaps
from .spots import Edits, Ranked, Spot, Undone

Planting = Swap | Callable[[KernelFile], Iterator[Change]]
Undoing = Swap | Callable[[Spot], Undone]


@dataclass(frozen=True)
class Row:
    """One kind of fault."""

    name: str
    says: str
    """What is wrong, in one sentence: {old} is what the edit that undoes it takes away, {new} what it puts in."""
    fault: str = ""
    """The class of what it plants, where a rule has none; "M1" and "M3" are told apart by what is changed."""
    plants: tuple[Planting, ...] = ()
    """What makes it; none of what mutate does not plant."""
    undoes: tuple[Undoing, ...] = ()
    """What may undo it."""
    again: float | None = None
    """How far it is, in the ranks of the edits, that what plants it undoes it too; None where it never does."""
    of_hosts: bool = False
    """Whether host code is edited so too: sizes, grids, allocations and what launches pass."""
    planted_in: str = "kernels"
    """Or "hosts", or "functions" for both."""

    def says_of(self, file: KernelFile, edits: Edits) -> str:
        """What is wrong where an edit helps."""
        first = edits[0]
        old, new = (" ".join(text.split()) for text in (file.text[first.start : first.end], first.text))
        return self.says.format(old=old or "nothing", new=new or "nothing")

    def changes(self, file: KernelFile) -> Iterator[Change]:
        """Every change of a file that makes it, each once."""
        seen: set[Edits] = set()
        for change in self._changes(file):
            if change.edits not in seen:
                seen.add(change.edits)
                yield change

    def _changes(self, file: KernelFile) -> Iterator[Change]:
        swaps = tuple(plant for plant in self.plants if isinstance(plant, Swap))
        for function in getattr(file, self.planted_in) if swaps else ():
            nodes = [node for statement in function.body for node in ast.walk(statement)]
            for swap, found in fitting(file, nodes, swaps):
                lost = found.get("_lost", found["_it"])
                fault = swap.fault or self.fault or plants.class_of(file, lost)
                yield Change(fault, found["_it"], (swap.edit(file, found),))
        for plant in self.plants:
            if not isinstance(plant, Swap):
                yield from plant(file)

    def edits(self, spot: Spot) -> Iterator[Ranked]:
        """The edits of a spot that may undo it."""
        swaps = tuple(source for source in self.undoes if isinstance(source, Swap))
        for swap, found in fitting(spot.file, spot.nodes, swaps):
            yield swap.rank, (swap.edit(spot.file, found),)
        for source in self.undoes:
            if not isinstance(source, Swap):
                yield from source(spot)
        if self.again is not None:
            start, end = spot.file.span(spot.root)
            for edits in _planted(self, spot.file).get(spot.statement, ()):
                if all(start <= edit.start <= edit.end <= end for edit in edits):
                    yield self.again, edits


@lru_cache(maxsize=256)
def _planted(row: Row, file: KernelFile) -> dict[object, list[Edits]]:
    """What a row plants in a file, by the statement that it changes."""
    found: dict[object, list[Edits]] = {}
    for change in row.changes(file):
        found.setdefault(file.statement(change.node), []).append(change.edits)
    return found


@lru_cache(maxsize=1024)  # the values of several lines come the same ways
def undone(spot: Spot) -> list[tuple[float, Edits, Row]]:
    """(rank, edits, row) of all edits of one spot; the last row that gives an edit says what it is."""
    rows = [row for row in ROWS if spot.is_on_device or row.of_hosts]
    found = [(rank, edits, row) for row in rows for rank, edits in row.edits(spot)]
    of = {edits: row for _, edits, row in found}
    return [(rank, edits, of[edits]) for rank, edits, _ in found]


def _is_statement(file: KernelFile, found: Found) -> bool:
    return isinstance(next(file.above(found["_it"])), ast.Expr)


def _is_clamp(file: KernelFile, found: Found) -> bool:
    """Not `tl.max(s, 1)`, which is the largest along an axis."""
    called = file.text_of(found["_it"]).partition("(")[0]
    return not called.endswith((".min", ".max"))


def _is_assigned(file: KernelFile, found: Found) -> bool:
    return isinstance(next(file.above(found["_it"])), (ast.Assign, ast.AugAssign))


def _is_no_address(file: KernelFile, found: Found) -> bool:
    return not name_kinds.has_strides(file.statement(found["_it"]))


# Each comparison with the one that differs in the bound itself, and the one that looks the other way.
_SIGNS = ((">=", ">", "<="), (">", ">=", "<"), ("<=", "<", ">="), ("<", "<=", ">"))
_BOUNDS = tuple(Swap(f"_a {old} _b", f"_a {new} _b", when=plants.are_counts) for old, new, _ in _SIGNS)
_TURNED = tuple(
    Swap(f"_a {old} _b", text, rank)
    for old, _, new in _SIGNS
    for rank, text in ((2.0, f"_a {new} _b"), (2.5, f"_a {old} _b + 1"), (2.5, f"_a {old} _b - 1"))
)
# A factor of both sides of a difference, or of one.
_FACTORS = tuple(
    Swap(old.replace("-", sign), new.replace("-", sign), rank)
    for sign in "-+"
    for rank, old, new in (
        (1.4, "(_a - _b) * _c", "_a * _c - _b"), (1.5, "(_a - _b) * _c", "_a - _b * _c"),
        (1.5, "_a * _c - _b", "(_a - _b) * _c"), (1.5, "_a - _b * _c", "(_a - _b) * _c"),
    )
)  # fmt: skip
_OTHER_SIGN = (
    Swap("_a + _b", "_a - _b", 0.9, when=_is_no_address), Swap("_a - _b", "_a + _b", 0.9, when=_is_no_address),
    *swaps((1.2, "_a += _b", "_a -= _b"), (1.2, "_a -= _b", "_a += _b"), (2.0, "_a * _b", "_a / _b"),
           (2.0, "_a / _b", "_a * _b"), (1.2, "_a *= _b", "_a /= _b"), (1.2, "_a /= _b", "_a *= _b")),
)  # fmt: skip
# A row along the other axis, where a product or a difference takes it along the last one, or as another one does.
_AXES = (
    Swap("_row @ _b", "_row[:, None]", 0.9, "_row"), Swap("_a @ _row", "_row[:, None]", 0.9, "_row"),
    Swap("_a[:, None]", "_a[None, :]", 1.4, when=_is_no_address),
    Swap("_a[None, :]", "_a[:, None]", 1.4, when=_is_no_address),
)  # fmt: skip
# A part of what stands there.
_PARTS = (Swap("CLAMP(_a, _b)", "_a", 0.5, when=_is_clamp), Swap("CLAMP(_a, _b)", "_b", 0.5, when=_is_clamp)) + swaps(
    (1.0, "_a @ _number", "_a"), (1.4, "_a @ _scale", "_a"),
    (1.9, "_a @ _b", "_a"), (1.9, "_a + _b", "_b"), (1.9, "_a * _b", "_b"), (1.9, "_a & _b", "_b"),
    (1.9, "_a | _b", "_b"), (2.0, "-_a", "_a"), (2.0, "~_a", "_a"), (1.0, "_a.to(*_)", "_a"),
    (-0.3, "_a.to(*_).to(*_)", "_a"), (1.5, "where(_t, _a, _b)", "_a"),
    (2.0, "where(_t, _a, _b)", "tl.where(_t, _b, _a)"),
)  # fmt: skip
# The ends of a loop a step further or nearer, or without what is added to them; where that is a step, at once.
_ENDS = tuple(
    Swap(f"RANGE({pattern}{more})", text.replace("_c", step), rank, place)
    for step, more in (("1", ""), ("_c", ", _c"))
    for rank, pattern, place, text in (
        (1.0, "_a, _b", "_a", "0"), (1.5, "_a, _b", "_a", "_a + _c"), (1.5, "_a, _b", "_a", "_a - _c"),
        (1.5, "_a, _b", "_b", "_b + _c"), (1.5, "_a, _b", "_b", "_b - _c"),
        (0.9, "(_end := _a @ _x), _b", "_end", "_a"), (0.9, "_a, (_end := _b @ _x)", "_end", "_b"),
        (0.0, f"(_end := _a @ {step}), _b", "_end", "_a"), (0.0, f"_a, (_end := _b @ {step})", "_end", "_b"),
    )
)  # fmt: skip

ROWS: tuple[Row, ...] = (
    Row("other-text", "{old} stands for {new}", undoes=(
        grammar.of_siblings, *_FACTORS, *_OTHER_SIGN, grammar.moved)),
    Row("another-stride", "{old} stands in the place of {new}", "S1", (plants.another_stride,),
        (grammar.another_name,), of_hosts=True),
    Row("other-tensors-strides", "the strides of {old} are passed for those of {new}", "S1",
        (plants.other_tensors_strides,), (grammar.owner_meant,), of_hosts=True),
    Row("own-strides-swapped", "two strides of one tensor stand in each other's place", "S3",
        (plants.own_strides_swapped,), again=0.7),
    Row("term-dropped", "an offset lacks a term: {new}", "S3", (
        Swap("_a + _term", "_a", when=plants.is_scalar_term), Swap("_term + _a", "_a", when=plants.is_scalar_term),
        Swap("_a += _term", "_a += 0", when=plants.is_scalar_term)), (grammar.term_missing,)),
    Row("divisions-mixed-up", "an index is taken apart by {old} and not by {new}", "S3",
        swaps((0.0, "_a // _index", "_a % _index"), (0.0, "_a % _index", "_a // _index")), again=0.7),
    Row("wide-offset-dropped", "an offset of 32 bits overflows", "I64",
        (Swap("_a.to(tl.int64, *_)", "_a"), plants.wide_parameter_dropped)),
    Row("bound-off-by-one", "a bound is off: {old} for {new}", "", _BOUNDS, _TURNED, again=0.7),
    Row("operand-dropped", "a mask lacks a condition", "", (
        Swap("_a & _lost", "_a"), Swap("_lost & _a", "_a"), Swap("_a &= _b", "pass", fault="M1")),
        (grammar.test_added,)),
    Row("guard-dropped", "nothing hides what this position may not see", "M1", (
        Swap("where(_a == _inf, _x, _b)", "_b", fault="N1"), Swap("where(_a != _inf, _b, _x)", "_b", fault="N1"),
        Swap("where(_a > _inf, _b, _x)", "_b", fault="N1"), Swap("where(_t, _a, _inf)", "_a"),
        Swap("where(_t, _a, _zero)", "_a")), (grammar.guard_added,)),
    Row("mask-dropped", "an access has no mask", "M3", (plants.mask_dropped,), (grammar.mask_put_on,)),
    Row("padding-changed", "what is masked off is read as {old} and not as {new}", "M3", (
        Swap("ACCESS(*_, other=_zero)", "1.0", place="_zero"),
        Swap("ACCESS(*_, other=_other)", "0.0", place="_other")), again=1.0),
    Row("range-cut", "a loop leaves tiles out, or takes too many", "M2", (
        Swap("RANGE(_a, _b, _c)", "_b // _c * _c", place="_b", fault="M3"),
        Swap("RANGE(_zero, _b, _c)", "_c", place="_zero"),
        Swap("RANGE(_other, _b, _c)", "_other + _c", place="_other")),
        (Swap("_a // _b * _c", "_a"), *_ENDS), of_hosts=True),
    Row("last-tile-lost", "tiles are counted in whole ones, or as many as are begun", "M3",
        swaps((0.0, "cdiv(_a, _b)", "_a // _b")), swaps(
        (0.4, "cdiv(_a, _b)", "_a // _b"), (0.4, "(_a + _b - 1) // _b", "_a // _b"),
        (0.4, "_a // _b", "triton.cdiv(_a, _b)")), of_hosts=True, planted_in="functions"),
    Row("blocks-mixed-up", "{old} stands in the place of {new}", "M2", (plants.blocks_mixed_up,), again=1.0),
    Row("zeros-not-written", "memory that nobody wrote is added to", "N2", swaps(
        (0.0, "zeros(*_)", ".empty"), (0.0, "new_zeros(*_)", ".new_empty"), (0.0, "zeros_like(*_)", ".empty_like")),
        swaps((0.5, "empty(*_)", ".zeros"), (0.5, "new_empty(*_)", ".new_zeros"),
              (0.5, "empty_like(*_)", ".zeros_like")), of_hosts=True, planted_in="hosts"),
    Row("factor-dropped", "a factor is missing", "A",
        swaps((0.0, "_a * _scale", "_a"), (0.0, "_scale * _a", "_a"), (0.0, "_a *= _b", "_a *= 1.0")),
        (grammar.factor_added,)),
    Row("subtrahend-changed", "a row is not subtracted, or along the wrong axis", "A",
        swaps((0.0, "_a - _delta", "_a"), (0.0, "_a - _delta", "_a + _delta")), (grammar.delta_taken, *_AXES)),
    Row("other-part", "{old} stands for {new}", undoes=(grammar.constant_changed, *_PARTS), of_hosts=True),
    Row("other-base", "{old} stands for {new}: the other base", "A", swaps(
        (0.0, "exp(*_)", ".exp2"), (0.0, "exp2(*_)", ".exp"), (0.0, "log(*_)", ".log2"), (0.0, "log2(*_)", ".log")),
        again=0.7),
    Row("transpose-dropped", "a product takes {old} and not {new}", "A",
        swaps((0.0, "trans(_a, *_)", "_a"), (0.0, "_a.trans()", "_a"), (0.0, "_a.T", "_a")), (
        Swap("dot(_a, *_)", "tl.trans(_a)", 1.2, "_a"), Swap("dot(_a, _b, *_)", "tl.trans(_b)", 1.2, "_b")), again=2.0),
    Row("sum-overwritten", "a sum is overwritten, or added to what should be overwritten", "ACC",
        (Swap("_a += _b", "_a = _b", when=plants.is_sum),), (
        Swap("_a = _b", "_a += _b", 0.9, when=plants.has_value), Swap("_a += _b", "_a = _b", 2.5))),
    Row("atomic-stored", "programs overwrite one another's share of a sum, or add to it twice", "ACC",
        (Swap("atomic_add(*_)", ".store", when=_is_statement),), swaps((1.4, "store(*_)", ".atomic_add")), again=2.0),
    Row("barrier-dropped", "a barrier is missing", "RACE", (Swap("BARRIER(*_)", "pass", when=_is_statement),)),
    Row("rounded-early", "a value is rounded before it is used", "PREC",
        (Swap("ROUNDED(*_)", "_it.to(tl.bfloat16).to(tl.float32)", when=_is_assigned),)),
)  # fmt: skip
# By the name of each, in the order in which they are drawn from.
OPERATORS: dict[str, Callable[[KernelFile], Iterator[Change]]] = {row.name: row.changes for row in ROWS if row.plants}
