"""Faults of values (factors, delta, transposes, logarithms) and of masks (comparisons, guards, ends)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace

from ...model.intermediates import in_kernels, plain
from ..kernel_file import Change, KernelFile, called
from ..text import Edit

_DELTA = in_kernels("delta")
_BASES = {"exp": "exp2", "exp2": "exp", "log": "log2", "log2": "log"}


def factor_dropped(file: KernelFile) -> Iterator[Change]:
    """`dq` for `dq * scale`; and a factor that a line of its own multiplies by, as softcap's derivative is."""
    for node in file.inside_kernels(ast.BinOp, ast.AugAssign):
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Mult):
            yield Change("A", node, (file.replaced(node.value, "1.0"),))
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            for lost, kept in zip((node.right, node.left), file.operands(node, "*"), strict=True):
                if isinstance(lost, ast.Name) and "scale" in lost.id.lower():
                    yield Change("A", node, (file.replaced(node, kept),))


def subtrahend_changed(file: KernelFile) -> Iterator[Change]:
    """`dp` and `dp + delta` for `dp - delta`; `D[:, None]` is a delta too, but not a D that is a size."""
    for node in file.inside_kernels(ast.BinOp):
        row = node.right.value if isinstance(node.right, ast.Subscript) else node.right
        name = row.id if isinstance(row, ast.Name) else ""
        is_delta = plain(name) in _DELTA or (name == "D" and row is not node.right)
        if isinstance(node.op, ast.Sub) and is_delta:
            at = file.operator(node.left, "-")
            yield Change("A", node, (file.replaced(node, file.operands(node, "-")[0]),))
            yield Change("A", node, (replace(at, text="+"),))


def other_base(file: KernelFile) -> Iterator[Change]:
    """exp2 for exp, log2 for log, and the reverse, without the factor that belongs to it."""
    for node in file.calls(*_BASES):
        if isinstance(node.func, ast.Attribute):
            base = file.text_of(node.func.value)
            yield Change("A", node, (file.replaced(node.func, f"{base}.{_BASES[node.func.attr]}"),))


def transpose_dropped(file: KernelFile) -> Iterator[Change]:
    """`k` for `tl.trans(k)` or `k.T`: compiles only where both sizes are the same."""
    for node in file.inside_kernels(ast.Call, ast.Attribute):
        if isinstance(node, ast.Call) and called(node) == "trans":
            inner = node.args[0] if node.args else node.func.value  # type: ignore[attr-defined]
            yield Change("A", node, (file.replaced(node, file.text_of(inner)),))
        elif isinstance(node, ast.Attribute) and node.attr == "T":
            yield Change("A", node, (file.replaced(node, file.text_of(node.value)),))


_ROUNDED = ("dot", "exp", "exp2")


def wide_offset_dropped(file: KernelFile) -> Iterator[Change]:
    """`.to(tl.int64)` taken away, and a parameter's `: tl.int64`."""
    for kernel in file.kernels:
        for node in ast.walk(kernel):
            if called(node) == "to" and isinstance(node, ast.Call) and node.args and _is_int64(node.args[0]):
                assert isinstance(node.func, ast.Attribute)
                yield Change("I64", node, (Edit(file.span(node.func.value)[1], file.span(node)[1], ""),))
            if isinstance(node, ast.arg) and node.annotation is not None and _is_int64(node.annotation):
                name = file.span(node)[0] + len(node.arg)
                yield Change("I64", node, (Edit(name, file.span(node)[1], ""),))


def rounded_early(file: KernelFile) -> Iterator[Change]:
    """A product or P rounded to bfloat16 as it is made."""
    for call in file.calls(*_ROUNDED):
        if isinstance(next(file.above(call)), (ast.Assign, ast.AugAssign)):
            yield Change("PREC", call, (file.replaced(call, f"{file.text_of(call)}.to(tl.bfloat16).to(tl.float32)"),))


def _is_int64(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "int64"


_BARRIERS = ("debug_barrier", "barrier", "syncthreads")


def sum_overwritten(file: KernelFile) -> Iterator[Change]:
    """`dk = tl.dot(...)` for `dk += tl.dot(...)`: in a loop, of a sum that begins as a tile of zeros."""
    for kernel in file.kernels:
        assigned = [node for node in ast.walk(kernel) if isinstance(node, ast.Assign)]
        targets = [target for node in assigned if called(node.value) in ("zeros", "full") for target in node.targets]
        sums = {target.id for target in targets if isinstance(target, ast.Name)}
        for node in ast.walk(kernel):
            adds = (
                isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add) and file.text_of(node.target) in sums
            )
            if adds and any(isinstance(above, ast.For) for above in file.above(node)):
                yield Change("ACC", node, (replace(file.operator(node.target, "+="), text="="),))  # type: ignore[attr-defined]


def atomic_stored(file: KernelFile) -> Iterator[Change]:
    """`tl.store` for `tl.atomic_add`: the last program's share is all that is left."""
    for call in file.calls("atomic_add"):
        if isinstance(next(file.above(call)), ast.Expr):
            words = file.text_of(call.func).replace("atomic_add", "store")
            yield Change("ACC", call, (file.replaced(call.func, words),))


def barrier_dropped(file: KernelFile) -> Iterator[Change]:
    """A barrier taken away."""
    for call in file.calls(*_BARRIERS):
        if isinstance(next(file.above(call)), ast.Expr):
            yield Change("RACE", call, (file.replaced(call, "pass"),))


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
        sides = (node.left, node.comparators[0])
        is_float = any(isinstance(side, ast.Constant) and isinstance(side.value, float) for side in sides)
        if len(node.ops) == 1 and type(node.ops[0]) in _SIGNS and not is_float and not any(map(_is_infinite, sides)):
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
                yield Change("N1", node, (file.replaced(node, file.text_of(kept)),))
            elif _is_infinite(other) or _is_zero(other):
                yield Change("M1", node, (file.replaced(node, file.text_of(one)),))


def _class_of(file: KernelFile, node: ast.expr) -> str:
    """M3 for a bound of what there is, else M1."""
    if not isinstance(node, ast.Compare) or not isinstance(node.ops[0], (ast.Lt, ast.LtE)):
        return "M1"
    bound = node.comparators[0]
    among_positions = isinstance(bound, ast.Subscript) or "offs" in file.text_of(bound)
    return "M1" if among_positions or _SEEN.search(file.text_of(node)) else "M3"


def _without(file: KernelFile, call: ast.Call, word: ast.keyword) -> Edit:
    """A keyword taken away, with the comma before it."""
    start, end = file.span(word)
    before = [other for other in (*call.args, *call.keywords) if file.span(other)[0] < start]
    return Edit(file.operator(max(before, key=file.span), ",").start, end, "")


def _is_zero(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value == 0


def _is_infinite(node: ast.expr) -> bool:
    node = node.operand if isinstance(node, ast.UnaryOp) else node
    if called(node) == "float" and isinstance(node, ast.Call) and node.args:
        return isinstance(node.args[0], ast.Constant) and "inf" in str(node.args[0].value)
    return isinstance(node, ast.Attribute) and node.attr == "inf"
