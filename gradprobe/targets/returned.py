"""What a backward returns as a tuple, by name: as its return statement calls it, else dQ, dK and dV in this order."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ..frontends.python import plain_function
from ..model.intermediates import GRADIENT_OF, lookup
from .naming import canonical_name

_BY_PLACE = ("dQ", "dK", "dV")


def as_tensors(result: Any) -> Any:
    """The results of a backward with each array, of numpy or whatever has `__dlpack__`, as a tensor of its memory."""
    if isinstance(result, Mapping):
        return {name: _as_tensor(value) for name, value in result.items()}
    return tuple(map(_as_tensor, result)) if isinstance(result, (tuple, list)) else result


def _as_tensor(value: Any) -> Any:
    """A tensor; the value itself where it is no array, or one that torch does not read, for whoever judges results."""
    import numpy as np
    import torch
    from torch.utils.dlpack import from_dlpack

    if isinstance(value, torch.Tensor) or not hasattr(value, "__dlpack__"):
        return value
    try:
        if not isinstance(value, np.ndarray):
            return from_dlpack(value)
        # Torch reads no array backwards, and warns of one that may not be written.
        plain = value.flags.writeable and min(value.strides, default=0) >= 0
        return torch.from_numpy(value if plain else value.copy())
    except (BufferError, RuntimeError, TypeError, ValueError):
        return value


def by_name(function: Callable[..., Any], results: Sequence[Any]) -> tuple[dict[str, Any], str] | None:
    """The results by name, and a sentence that says why so; None where neither words nor number tell which is which.

    A result whose name is that of no gradient is left out.
    """
    words = next((names for names in returned_names(function) if len(names) == len(results)), [])
    named = [_gradient(word) for word in words]
    if {*_BY_PLACE} <= {*named} and all(named.count(name) == 1 for name in named if name):
        found = {name: result for name, result in zip(named, results, strict=True) if name}
        return found, _taken_for(found, "by the names in its return statement")
    # Behind them autograd asks for None.
    if [at for at, one in enumerate(results) if one is not None] != [0, 1, 2]:
        return None
    return dict(zip(_BY_PLACE, results, strict=False)), _taken_for(_BY_PLACE, "by their order; a dict says otherwise")


def _taken_for(names: Iterable[str], why: str) -> str:
    return f"of the tuple that it returns, {', '.join(names)} are taken {why}"


def statements_of(function: Callable[..., Any]) -> Iterator[ast.AST]:
    """What stands in a function, and not in another one inside it, with its lines in the file."""
    try:
        lines, first = inspect.getsourcelines(plain_function(function))
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError):
        return
    ast.increment_lineno(tree, max(first, 1) - 1)
    waiting: list[ast.AST] = list(getattr(tree.body[0], "body", []))
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            waiting += ast.iter_child_nodes(node)


def returned_names(function: Callable[..., Any]) -> Iterator[list[str]]:
    """Of each tuple that a function itself returns, the last one first, what its elements are called; "" of others."""
    for node in statements_of(function):
        if isinstance(node, ast.Return) and isinstance(node.value, (ast.Tuple, ast.List)):
            yield [_name_of(element) for element in _flat(node.value)]


def _flat(node: ast.expr) -> Iterator[ast.expr]:
    if isinstance(node, (ast.Tuple, ast.List)):
        for part in node.elts:
            yield from _flat(part)
    else:
        yield node


def _name_of(node: ast.expr) -> str:
    """`dq` of `dq`, `dq.to(q.dtype)` and `q.grad`."""
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.Call)):
        if isinstance(node, ast.Attribute) and node.attr == "grad" and isinstance(node.value, ast.Name):
            return f"d{node.value.id}"
        if isinstance(node, ast.Call):
            if not isinstance(node.func, ast.Attribute):
                return ""
            node = node.func
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _gradient(word: str) -> str:
    """`dQ` of `dq` and `grad_q`; "" of other names."""
    row = lookup(canonical_name(word) or word)
    return row.name if row is not None and row.name in GRADIENT_OF.values() else ""
