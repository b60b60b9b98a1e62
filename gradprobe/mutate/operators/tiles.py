"""M2 and M3: ranges that miss their first or last tile, and one block's size for the other's."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ..source import KernelFile, called
from .change import Change
from .strides import parameters, uses

# In these a size is part of a shape: another one does not fit the tiles beside it.
_SHAPES = ("arange", "zeros", "full", "make_block_ptr", "reshape", "broadcast_to")


def range_cut(file: KernelFile) -> Iterator[Change]:
    """A loop over tiles that ends with the last whole one, or begins behind the first."""
    for loop in file.calls("range", "static_range"):
        if len(loop.args) == 3:
            start, stop, step = loop.args
            size = file.words(step)
            yield Change("M3", stop, (file.replaced(stop, f"{_whole(file, stop)} // {size} * {size}"),))
            yield Change("M2", start, (file.replaced(start, _plus(file, start, size)),))


def last_tile_lost(file: KernelFile) -> Iterator[Change]:
    """So many tiles as fit whole, not as many as are begun."""
    for function in file.functions:
        for node in ast.walk(function):
            if called(node) == "cdiv" and isinstance(node, ast.Call) and len(node.args) == 2:
                size, block = node.args
                words = f"({_whole(file, size)} // {_whole(file, block)})"
                yield Change("M3", node, (file.replaced(node, words),))


def blocks_mixed_up(file: KernelFile) -> Iterator[Change]:
    """BLOCK_N for BLOCK_M and the reverse, where they are counted with and not part of a shape."""
    for kernel in file.kernels:
        known = set(parameters(kernel))
        for use in uses(kernel):
            other = _partner(use.id)
            if other in known and not any(called(above) in _SHAPES for above in file.above(use)):
                yield Change("M2", use, (file.replaced(use, other),))


def _partner(name: str) -> str:
    """BLOCK_N for BLOCK_M, BLOCK_SIZE_M1 for BLOCK_SIZE_N1; "" for any other name."""
    match = re.fullmatch(r"(BLOCK_?(?:SIZE_?)?)([MN])(\d?)", name)
    return f"{match[1]}{'N' if match[2] == 'M' else 'M'}{match[3]}" if match else ""


def _whole(file: KernelFile, node: ast.expr) -> str:
    """Words that may stand beside any operator."""
    words = file.words(node)
    return words if isinstance(node, (ast.Name, ast.Constant, ast.Attribute, ast.Call, ast.Subscript)) else f"({words})"


def _plus(file: KernelFile, node: ast.expr, size: str) -> str:
    return size if isinstance(node, ast.Constant) and node.value == 0 else f"{file.words(node)} + {size}"
