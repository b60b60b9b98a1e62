"""What a kernel is given or makes and never reads: whoever dropped a term, a factor or a mask left its name behind."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache

from ...model.mechanisms import door
from ..kernel_file import KernelFile, called
from ..operators.addresses import parameters, stride_of
from ..text import Edit
from ..triton_source import bound_in
from .alike import belongs
from .spots import Spot


@lru_cache(maxsize=256)
@door("edits/unread", lambda function: frozenset())
def unread(function: ast.FunctionDef) -> frozenset[str]:
    """The names of a function that nothing in it reads."""
    names = [node for node in ast.walk(function) if isinstance(node, ast.Name)]
    read = {node.id for node in names if isinstance(node.ctx, ast.Load)}
    return frozenset({*parameters(function), *bound_in(function.body)} - read)


def term_added(file: KernelFile, spot: Spot, scope: list[str]) -> Iterator[tuple[float, tuple[Edit, ...]]]:
    """`b * stride_qb + h * stride_qh` for `b * stride_qb`: the index with which others of that axis are multiplied."""
    if spot.function not in file.kernels:
        return
    beside = [*(node.id for node in spot.names), *bound_in([spot.statement])]
    terms = [
        (0.3 if name in unread(spot.function) else 1.8, f"{index} * {name}")
        for name in parameters(spot.function)
        if name not in beside and (parts := stride_of(name)) is not None and belongs(name, beside)
        for index in _indices(file, parts[1]) if index in scope and index not in beside
    ]  # fmt: skip
    made = set(bound_in(spot.function.body))
    left = [name for name in scope if name in unread(spot.function) and name not in beside]
    # An index and a stride that nothing reads stood together.
    strides = [name for name in left if stride_of(name) is not None]
    terms += [(0.2, f"{name} * {stride}") for stride in strides for name in left if name in made and name != stride]
    for node in _sums(file, spot):
        yield from ((rank, (_added(file, node, term),)) for rank, term in terms)


def _added(file: KernelFile, node: ast.expr, term: str) -> Edit:
    """A term at the end of a sum, or in the place of 0."""
    if isinstance(node, ast.Constant):
        return file.replaced(node, term)
    end = file.span(node)[1]
    return Edit(end, end, f" + {term}")


@lru_cache(maxsize=64)
def _products(file: KernelFile) -> tuple[tuple[str, str], ...]:
    """(index, axis) of each index that stands before a stride, the most frequent first."""
    found: list[tuple[str, str]] = []
    for node in file.inside_kernels(ast.BinOp):
        if isinstance(node.op, ast.Mult) and isinstance(node.right, ast.Name):
            parts, left = stride_of(node.right.id), node.left
            left = left.func.value if called(left) == "to" else left  # type: ignore[attr-defined]
            if parts is not None and isinstance(left, ast.Name):
                found.append((left.id, parts[1]))
    return tuple(sorted(set(found), key=lambda each: (-found.count(each), each)))


def _indices(file: KernelFile, axis: str) -> list[str]:
    return [index for index, of in _products(file) if of == axis][:2]


def _sums(file: KernelFile, spot: Spot) -> Iterator[ast.expr]:
    """Where a term may be missing: whole sums with a stride, a product or a pointer alone, and a 0 that is added."""
    value = getattr(spot.statement, "value", None)
    is_pointer = isinstance(value, ast.Name) and value.id in parameters(spot.function)
    is_nothing = isinstance(spot.statement, ast.AugAssign) and isinstance(value, ast.Constant) and value.value == 0
    if isinstance(value, ast.expr) and (is_pointer or is_nothing):
        yield value
    for node in (node for root in spot.roots for node in ast.walk(root)):
        is_sum = isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Mult))
        if is_sum and not isinstance(next(file.above(node), None), ast.BinOp) and any(map(_is_stride, ast.walk(node))):
            yield node  # type: ignore[misc]


def _is_stride(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and stride_of(node.id) is not None
