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
