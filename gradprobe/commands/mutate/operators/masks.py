"""M1, M3 and N1: comparisons, masks and guards that are off by one, partly missing, or missing."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace

from ....source.edits import Edit
from ..mutant import Change
from ..source import KernelFile, called

_SIGNS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.GtE: (">=", ">"),
    ast.Gt: (">", ">="),
    ast.LtE: ("<=", "<"),
    ast.Lt: ("<", "<="),
}
_ACCESSES = ("load", "store", "atomic_add")
# Words of masks that say which keys are seen; any other upper bound is the end of what there is.
_SEEN = re.compile(r"window|left|right|causal|diag|distance", re.IGNORECASE)


def bound_off_by_one(file: KernelFile) -> Iterator[Change]:
    """`>` for `>=`, `<=` for `<` and the reverse, where whole numbers are compared."""
    for node in file.inside_kernels(ast.Compare):
        is_whole = not any(_is_float(side) for side in (node.left, node.comparators[0]))
        if len(node.ops) == 1 and type(node.ops[0]) in _SIGNS and is_whole:
            sign, other = _SIGNS[type(node.ops[0])]
            at = file.operator(node.left, sign)
            yield Change(_class_of(file, node), node, (replace(at, text=other),))


def operand_dropped(file: KernelFile) -> Iterator[Change]:
    """`valid` for `valid & (distance < window)`: one condition of a mask is missing."""
    for node in file.inside_kernels(ast.BinOp, ast.AugAssign):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitAnd):
            left, right = file.operands(node, "&")
            yield Change(_class_of(file, node.right), node, (file.replaced(node, left),))
            yield Change(_class_of(file, node.left), node, (file.replaced(node, right),))
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.BitAnd):
            yield Change("M1", node.value, (file.replaced(node, "pass"),))


def mask_dropped(file: KernelFile) -> Iterator[Change]:
    """An access without its `mask=`, and without `other=`, which means nothing alone."""
    for node in file.calls(*_ACCESSES):
        words = [word for word in node.keywords if word.arg in ("mask", "other")]
        if any(word.arg == "mask" for word in words):
            yield Change("M3", node, tuple(_without(file, node, word) for word in words))


def padding_changed(file: KernelFile) -> Iterator[Change]:
    """Another `other=`: 1.0 for 0.0, and 0.0 for what is not 0."""
    for node in file.calls(*_ACCESSES):
        for word in (word for word in node.keywords if word.arg == "other"):
            yield Change("M3", node, (file.replaced(word.value, "1.0" if _is_zero(word.value) else "0.0"),))


def guard_dropped(file: KernelFile) -> Iterator[Change]:
    """`tl.where` taken away: what it guards from -inf, or the values that it hides."""
    for node in file.calls("where"):
        if len(node.args) == 3:
            test, one, other = node.args
            if isinstance(test, ast.Compare) and any(_is_infinite(side) for side in (test.left, *test.comparators)):
                kept = other if isinstance(test.ops[0], ast.Eq) else one
                yield Change("N1", node, (file.replaced(node, file.words(kept)),))
            elif _is_infinite(other) or _is_zero(other):
                yield Change("M1", node, (file.replaced(node, file.words(one)),))


def _class_of(file: KernelFile, node: ast.expr) -> str:
    """M3 for a bound of what there is, else M1."""
    if not isinstance(node, ast.Compare) or not isinstance(node.ops[0], (ast.Lt, ast.LtE)):
        return "M1"
    bound = node.comparators[0]
    among_positions = isinstance(bound, ast.Subscript) or "offs" in file.words(bound)
    return "M1" if among_positions or _SEEN.search(file.words(node)) else "M3"


def _without(file: KernelFile, call: ast.Call, word: ast.keyword) -> Edit:
    """A keyword taken away, with the comma before it."""
    start, end = file.span(word)
    before = [other for other in (*call.args, *call.keywords) if file.span(other)[0] < start]
    return Edit(file.operator(max(before, key=file.span), ",").start, end, "")


def _is_float(node: ast.expr) -> bool:
    return (isinstance(node, ast.Constant) and isinstance(node.value, float)) or _is_infinite(node)


def _is_zero(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value == 0


def _is_infinite(node: ast.expr) -> bool:
    node = node.operand if isinstance(node, ast.UnaryOp) else node
    if called(node) == "float" and isinstance(node, ast.Call) and node.args:
        return isinstance(node.args[0], ast.Constant) and "inf" in str(node.args[0].value)
    return isinstance(node, ast.Attribute) and node.attr == "inf"
