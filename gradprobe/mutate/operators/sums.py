"""ACC and RACE: sums that are overwritten, and barriers that are missing."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace

from ..source import KernelFile, called
from .change import Change

_BARRIERS = ("debug_barrier", "barrier", "syncthreads")


def sum_overwritten(file: KernelFile) -> Iterator[Change]:
    """`dk = tl.dot(...)` for `dk += tl.dot(...)`: in a loop, of a sum that begins as a tile of zeros."""
    for kernel in file.kernels:
        sums = _sums(kernel)
        for loop in ast.walk(kernel):
            inside = ast.walk(loop) if isinstance(loop, ast.For) else ()
            for node in inside:
                if _adds_to(node, sums) and _innermost(file, node) is loop:
                    assert isinstance(node, ast.AugAssign)
                    yield Change("ACC", node, (replace(file.operator(node.target, "+="), text="="),))


def atomic_stored(file: KernelFile) -> Iterator[Change]:
    """`tl.store` for `tl.atomic_add`: the last program's share is all that is left."""
    for kernel in file.kernels:
        for node in ast.walk(kernel):
            if isinstance(node, ast.Expr) and called(node.value) == "atomic_add":
                assert isinstance(node.value, ast.Call)
                words = file.words(node.value.func).replace("atomic_add", "store")
                yield Change("ACC", node.value, (file.replaced(node.value.func, words),))


def barrier_dropped(file: KernelFile) -> Iterator[Change]:
    """A barrier taken away."""
    for kernel in file.kernels:
        for node in ast.walk(kernel):
            if isinstance(node, ast.Expr) and called(node.value) in _BARRIERS:
                yield Change("RACE", node.value, (file.replaced(node, "pass"),))


def _sums(kernel: ast.FunctionDef) -> set[str]:
    """The variables that begin as a tile of one number."""
    assigned = (node for node in ast.walk(kernel) if isinstance(node, ast.Assign))
    targets = (target for node in assigned if called(node.value) in ("zeros", "full") for target in node.targets)
    return {target.id for target in targets if isinstance(target, ast.Name)}


def _adds_to(node: ast.AST, sums: set[str]) -> bool:
    adds = isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add)
    return adds and isinstance(node.target, ast.Name) and node.target.id in sums  # type: ignore[attr-defined]


def _innermost(file: KernelFile, node: ast.AST) -> ast.AST | None:
    return next((above for above in file.above(node) if isinstance(above, ast.For)), None)
