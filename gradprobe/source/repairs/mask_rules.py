"""Rules of masks: comparisons, their terms, and what is hidden by them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace

from ..kernel_file import called
from ..text import Edit
from ..triton_source import bound_in
from .guards import guarded, hiding
from .repairs import MASK, STORES, Repairs, Undone, is_position, value_of
from .spots import Spot
from .unread import unread

_ACCESSES = ("load", *STORES)
_SIGNS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.GtE: (">=", "<="), ast.Gt: (">", "<"), ast.LtE: ("<=", ">="), ast.Lt: ("<", ">"),
}  # fmt: skip


def comparison_turned(by: Repairs, spot: Spot, scope: list[str]) -> Undone:
    """`<=` for `>=`; a bound one further or nearer."""
    for node in by.nodes(spot):
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _SIGNS:
            sign, other = _SIGNS[type(node.ops[0])]
            yield 2.0, (replace(by.file.operator(node.left, sign), text=other),)
            for step in ("+ 1", "- 1"):
                yield 2.5, by.replaced(node.comparators[0], f"{by.bracketed_text(node.comparators[0])} {step}")


def mask_added(by: Repairs, spot: Spot, scope: list[str]) -> Undone:
    """One more term in a mask; a mask on an access that has none; what is hidden set to 0 or left out of the scores."""
    terms = [*_named_masks(by, spot, scope), *_terms(by, scope)]
    for mask in _masks(by, spot):
        words = by.file.text_of(mask)
        yield from ((1.5, by.replaced(mask, f"({words}) & ({term})")) for term in terms if term not in words)
    for start, head, test in _tests(by, spot):
        held, end = by.file.text_of(test), by.file.span(test)[1]
        others = ((rank, other) for rank, other in hiding(by.file, spot.function) if other not in held)
        yield from ((rank, (Edit(start, end, f"{head}({held}) & ({other})"),)) for rank, other in others)
    for node in by.nodes(spot):
        if isinstance(node, ast.Call) and called(node) in _ACCESSES and not any(w.arg == "mask" for w in node.keywords):
            other = ", other=0.0" if called(node) == "load" else ""
            end = by.file.span(node)[1] - 1
            yield from ((1.5, (Edit(end, end, f", mask={term}{other}"),)) for term in terms)
    value = value_of(by, spot) if isinstance(spot.statement, ast.Assign) else None
    if value is not None and spot.function in by.file.kernels:
        yield from ((rank, by.replaced(value, text)) for rank, text in guarded(by.file, spot, value, scope))
        names = [name for name in scope if "mask" in name.lower() or "valid" in name.lower()]
        for hidden in ("0.0", 'float("-inf")'):
            held = by.file.text_of(value)
            yield from ((2.5, by.replaced(value, f"tl.where({test}, {held}, {hidden})")) for test in [*names, *terms])


def _tests(by: Repairs, spot: Spot) -> Iterator[tuple[int, str, ast.expr]]:
    """(offset, "tl.where(" if that stands there, test) of each that decides over pairs of a row and a key."""
    for node in by.nodes(spot):
        if isinstance(node, ast.Call) and called(node) == "where" and node.args:
            yield by.file.span(node)[0], f"{by.file.text_of(node.func)}(", node.args[0]
    value = value_of(by, spot)
    if isinstance(value, ast.Compare) and not any(map(is_position, ast.walk(value))):
        yield by.file.span(value)[0], "", value


def _named_masks(by: Repairs, spot: Spot, scope: list[str]) -> list[str]:
    """The masks that the function has by a name, along each axis: first those never read, then by words in common."""
    names = [name for name in scope if MASK.search(name) and name not in bound_in([spot.statement])]
    here = {word for node in spot.names for word in node.id.lower().split("_")}
    names.sort(key=lambda name: (name not in unread(spot.function), -len(here & set(name.lower().split("_")))))
    return [f"{name}{axis}" for name in names[:3] for axis in ("[:, None]", "[None, :]", "")]


def _terms(by: Repairs, scope: list[str]) -> list[str]:
    known = {*scope, "tl"}
    trees = [(words, ast.parse(words.strip().replace("\n", " "), mode="eval")) for words in by.conditions]
    return [
        words for words, tree in trees
        if {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} <= known
    ][:8]  # fmt: skip


def _masks(by: Repairs, spot: Spot) -> Iterator[ast.expr]:
    """Where a condition over positions stands whole."""
    for node in by.nodes(spot):
        if isinstance(node, ast.keyword) and node.arg == "mask":
            yield node.value
        elif called(node) == "where" and isinstance(node, ast.Call) and node.args:
            yield node.args[0]
    value = value_of(by, spot)
    if value is not None and any(map(MASK.search, bound_in([spot.statement]))):
        yield value
        return
    is_mask = isinstance(value, ast.Compare) or (isinstance(value, ast.BinOp) and isinstance(value.op, ast.BitAnd))
    if value is not None and is_mask:
        yield value
