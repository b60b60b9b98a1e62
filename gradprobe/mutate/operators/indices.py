"""S3: terms that an address lacks, and the two halves of a division in each other's place."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace

from ..source import KernelFile, called
from .change import Change
from .strides import stride_of


def term_dropped(file: KernelFile) -> Iterator[Change]:
    """`b * stride_lseb` for `b * stride_lseb + h * stride_lseh`: a head's, batch's or sequence's term is missing."""
    for kernel in file.kernels:
        nodes = list(ast.walk(kernel))
        if not any(called(node) == "program_id" for node in nodes):
            continue  # what its parameters hold is not known: without a vector's term it would not compile
        vectors = _vectors(kernel)
        for node in nodes:
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
                for lost, kept in zip((node.right, node.left), file.operands(node, "+"), strict=True):
                    if _is_scalar_term(lost, vectors):
                        yield Change("S3", node, (file.replaced(node, kept),))
            elif isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
                alone = [node.value] if _is_scalar_term(node.value, vectors) else []
                yield from (Change("S3", node, (file.replaced(each, "0"),)) for each in alone)


def divisions_mixed_up(file: KernelFile) -> Iterator[Change]:
    """`//` for `%` and the reverse, where an index is taken apart; `h % group` for `h // group`."""
    for node in file.inside_kernels(ast.BinOp):
        divides = isinstance(node.op, (ast.FloorDiv, ast.Mod))
        if divides and isinstance(node.right, ast.Name) and not node.right.id.isupper():
            sign, other = ("//", "%") if isinstance(node.op, ast.FloorDiv) else ("%", "//")
            yield Change("S3", node, (replace(file.operator(node.left, sign), text=other),))


def _is_scalar_term(node: ast.expr, vectors: set[str]) -> bool:
    """Whether a node is an index times a stride, of single numbers."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Mult):
        return False
    names = {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}
    tiles = any(isinstance(inner, ast.Subscript) for inner in ast.walk(node))
    return not tiles and not names & vectors and any(stride_of(name) for name in names)


def _vectors(kernel: ast.FunctionDef) -> set[str]:
    """The variables that hold a row or a tile: made of tl.arange, or of others that are."""
    found: set[str] = set()
    assigned = [node for node in ast.walk(kernel) if isinstance(node, (ast.Assign, ast.AugAssign))]
    for node in sorted(assigned, key=lambda node: node.lineno):
        inside = list(ast.walk(node.value))
        names = {inner.id for inner in inside if isinstance(inner, ast.Name)}
        if names & found or any(called(inner) in ("arange", "zeros", "full") for inner in inside):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {inner.id for target in targets for inner in ast.walk(target) if isinstance(inner, ast.Name)}
    return found
