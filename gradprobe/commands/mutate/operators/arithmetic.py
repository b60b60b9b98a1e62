"""A: factors, delta and transposes that are missing, and logarithms of another base."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace

from ....source.edits import Edit
from ..mutant import Change
from ..source import KernelFile, called

_DELTA = {"delta", "di", "d_i", "dpsum", "dsum"}
_BASES = {"exp": "exp2", "exp2": "exp", "log": "log2", "log2": "log"}


def factor_dropped(file: KernelFile) -> Iterator[Change]:
    """`dq` for `dq * scale`; and a factor that a line of its own multiplies by, as softcap's derivative is."""
    for node in file.inside_kernels(ast.BinOp, ast.AugAssign):
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Mult):
            yield Change("A", node, (file.replaced(node.value, "1.0"),))
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            kept = zip((node.right, node.left), file.operands(node, "*"), strict=True)
            yield from (Change("A", node, (file.replaced(node, text),)) for lost, text in kept if _is_scale(lost))


def subtrahend_changed(file: KernelFile) -> Iterator[Change]:
    """`dp` and `dp + delta` for `dp - delta`."""
    for node in file.inside_kernels(ast.BinOp):
        if isinstance(node.op, ast.Sub) and _is_delta(node.right):
            at = file.operator(node.left, "-")
            yield Change("A", node, (file.replaced(node, file.operands(node, "-")[0]),))
            yield Change("A", node, (replace(at, text="+"),))


def other_base(file: KernelFile) -> Iterator[Change]:
    """exp2 for exp, log2 for log, and the reverse, without the factor that belongs to it."""
    for node in file.calls(*_BASES):
        if isinstance(node.func, ast.Attribute):
            base = file.words(node.func.value)
            yield Change("A", node, (file.replaced(node.func, f"{base}.{_BASES[node.func.attr]}"),))


def transpose_dropped(file: KernelFile) -> Iterator[Change]:
    """`k` for `tl.trans(k)` or `k.T`: compiles only where both sizes are the same."""
    for node in file.inside_kernels(ast.Call, ast.Attribute):
        if isinstance(node, ast.Call) and called(node) == "trans":
            inner = node.args[0] if node.args else node.func.value  # type: ignore[attr-defined]
            yield Change("A", node, (file.replaced(node, file.words(inner)),))
        elif isinstance(node, ast.Attribute) and node.attr == "T":
            yield Change("A", node, (file.replaced(node, file.words(node.value)),))


def _is_scale(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and "scale" in node.id.lower()


def _is_delta(node: ast.expr) -> bool:
    """A row's delta, by one of its names; `D[:, None]` too, but not a D that is a size."""
    tile = isinstance(node, ast.Subscript)
    node = node.value if isinstance(node, ast.Subscript) else node
    return isinstance(node, ast.Name) and (node.id.lower() in _DELTA or (tile and node.id == "D"))


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
            yield Change("PREC", call, (file.replaced(call, f"{file.words(call)}.to(tl.bfloat16).to(tl.float32)"),))


def _is_int64(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "int64"


_BARRIERS = ("debug_barrier", "barrier", "syncthreads")


def sum_overwritten(file: KernelFile) -> Iterator[Change]:
    """`dk = tl.dot(...)` for `dk += tl.dot(...)`: in a loop, of a sum that begins as a tile of zeros."""
    for kernel in file.kernels:
        sums = _sums(kernel)
        for node in ast.walk(kernel):
            adds = isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add) and file.words(node.target) in sums
            if adds and any(isinstance(above, ast.For) for above in file.above(node)):
                yield Change("ACC", node, (replace(file.operator(node.target, "+="), text="="),))  # type: ignore[attr-defined]


def atomic_stored(file: KernelFile) -> Iterator[Change]:
    """`tl.store` for `tl.atomic_add`: the last program's share is all that is left."""
    for call in file.calls("atomic_add"):
        if isinstance(next(file.above(call)), ast.Expr):
            words = file.words(call.func).replace("atomic_add", "store")
            yield Change("ACC", call, (file.replaced(call.func, words),))


def barrier_dropped(file: KernelFile) -> Iterator[Change]:
    """A barrier taken away."""
    for call in file.calls(*_BARRIERS):
        if isinstance(next(file.above(call)), ast.Expr):
            yield Change("RACE", call, (file.replaced(call, "pass"),))


def _sums(kernel: ast.FunctionDef) -> set[str]:
    """The variables that begin as a tile of one number."""
    assigned = (node for node in ast.walk(kernel) if isinstance(node, ast.Assign))
    targets = (target for node in assigned if called(node.value) in ("zeros", "full") for target in node.targets)
    return {target.id for target in targets if isinstance(target, ast.Name)}
