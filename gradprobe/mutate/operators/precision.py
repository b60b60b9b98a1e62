"""I64 and PREC: offsets of 32 bits, and tiles rounded to 16 bits on the way."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ...source.edits import Edit
from ..source import KernelFile, called
from .change import Change

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
