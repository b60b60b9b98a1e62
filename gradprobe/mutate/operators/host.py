"""S1 and N2 in the function that launches: another tensor's strides passed, and zeros that nobody wrote."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..source import KernelFile, called
from .change import Change

# Tensors of as many axes as q, by the names that they usually have; only these may stand for one another.
_LIKE_Q = {"q", "k", "v", "o", "do", "dq", "dk", "dv", "query", "key", "value"}
_LIKE_Q |= {"out", "dout", "d_o", "grad_out", "grad_output"}
_EMPTY = {"zeros": "empty", "new_zeros": "new_empty", "zeros_like": "empty_like"}


def other_tensors_strides(file: KernelFile) -> Iterator[Change]:
    """`*q.stride()` for `*do.stride()`, `q.stride(1)` for `do.stride(1)`: the first other tensor of the function."""
    for host in file.hosts:
        found = [node for node in ast.walk(host) if _owner(node) is not None]
        found.sort(key=lambda node: (node.lineno, node.col_offset))  # type: ignore[attr-defined]
        names = list(dict.fromkeys(owner.id for node in found if (owner := _owner(node))))
        for node in found:
            owner = _owner(node)
            assert owner is not None
            other = next((name for name in names if name != owner.id), None)
            if other is not None:
                yield Change("S1", node, (file.replaced(owner, other),))


def zeros_not_written(file: KernelFile) -> Iterator[Change]:
    """torch.empty for torch.zeros."""
    for host in file.hosts:
        for node in ast.walk(host):
            if isinstance(node, ast.Call) and called(node) in _EMPTY:
                zeros = called(node)
                words = file.words(node.func).removesuffix(zeros) + _EMPTY[zeros]
                yield Change("N2", node, (file.replaced(node.func, words),))


def _owner(node: ast.AST) -> ast.Name | None:
    """Whose stride a call asks for."""
    if isinstance(node, ast.Call) and called(node) == "stride" and isinstance(node.func, ast.Attribute):
        owner = node.func.value
        if isinstance(owner, ast.Name) and owner.id.lower() in _LIKE_Q:
            return owner
    return None
