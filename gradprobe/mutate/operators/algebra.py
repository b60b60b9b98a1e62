"""A: factors, delta and transposes that are missing, and logarithms of another base."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace

from ..source import KernelFile, called
from .change import Change

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
