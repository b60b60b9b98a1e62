"""Names: what parameters, variables and returned values of a hand-written reference are called."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import Any

from ..model.intermediates import SUBEXPRESSIONS, TABLE, plain
from ..source.text import PythonSource
from ..targets.parameters import canonical_name

# What targets are never given by these names, and people call it so in references.
_PARAMETERS = {"grad": "do", "g": "do", "dy": "do", "d_out": "do", "grad_outputs": "do", "upstream": "do", "l": "lse",
               "p": "P", "attn": "P", "att": "P", "probabilities": "P", "probs": "P", "weights": "P",
               "attn_weights": "P", "queries": "q", "keys": "k", "values": "v", "y": "o"}  # fmt: skip
_SIZES = {"h": "h", "heads": "h", "n_heads": "h", "num_heads": "h", "nheads": "h", "b": "b", "batch": "b", "bs": "b",
          "batch_size": "b", "bsz": "b", "d": "d", "head_dim": "d", "d_head": "d", "d_k": "d", "dim_head": "d",
          "seq_len": "m", "seqlen": "m", "n_ctx": "m", "length": "m", "t": "m"}  # fmt: skip
_RESULTS = {
    word: row.name
    for row in (*TABLE, *SUBEXPRESSIONS)
    for word in (plain(row.name), *row.called.references.split(), *plain(row.called.parameters).split())
}


# What stands behind the name of an input in much code.
_ENDINGS = ("_in", "_ref", "_np", "_t", "_f", "_mat", "_tensor")


def parameter_named(name: str) -> str | None:
    """The canonical name of what a parameter is: of an input or option, or P for saved probabilities."""
    word = name.lower().strip("_")
    word = next((word.removesuffix(ending) for ending in _ENDINGS if word.endswith(ending)), word)
    return canonical_name(name) or canonical_name(word) or _PARAMETERS.get(word)


def size_named(name: str) -> str | None:
    """The axis whose length a parameter is."""
    return _SIZES.get(name.lower())


def role_of(name: str) -> str | None:
    """The intermediate that a variable or a key of a result is named after; None where its name says nothing."""
    word = name.lower().strip("_")
    for ending in ("_ref", "_manual", "_torch", "_expected", "_np", "_hat", "_fp32", "_f32", "_f64"):
        word = word.removesuffix(ending)
    return _RESULTS.get(plain(word.removeprefix("ref_")))


def returned_names(function: Callable[..., Any], source: PythonSource | None) -> list[list[str | None]]:
    """What each return statement's values are called, one list a statement that returns several; the last one first."""
    node = _definition(function, source)
    if node is None:
        return []
    returns = [
        one for one in _own(node) if isinstance(one, ast.Return) and isinstance(one.value, (ast.Tuple, ast.List))
    ]
    return [[_name_of(part) for part in _flat(one.value)] for one in reversed(returns)]


def return_line(function: Callable[..., Any], source: PythonSource | None, *, backward: bool = False) -> int | None:
    """The line of a function's last return statement; with `backward`, of its last call of that, where it has one."""
    node = _definition(function, source)
    inside = list(_own(node)) if node is not None else []
    called = [one.func for one in inside if isinstance(one, ast.Call)]
    calls = [one.lineno for one in called if isinstance(one, ast.Attribute) and one.attr in ("backward", "grad")]
    lines = [one.lineno for one in inside if isinstance(one, ast.Return)]
    return max((calls if backward else []) or lines, default=None)


def line_of_role(function: Callable[..., Any], source: PythonSource | None, role: str) -> int | None:
    """The line of the one statement that makes a variable named after an intermediate; None where there are others."""
    node = _definition(function, source)
    inside = [one for one in _own(node) if isinstance(one, (ast.Assign, ast.AugAssign))] if node is not None else []
    lines = {
        one.lineno
        for one in inside
        for target in (one.targets if isinstance(one, ast.Assign) else [one.target])
        if isinstance(target, ast.Name) and role_of(target.id) == role
    }
    return lines.pop() if len(lines) == 1 else None


def _definition(function: Callable[..., Any], source: PythonSource | None) -> ast.FunctionDef | None:
    code = getattr(function, "__code__", None)
    if source is None or code is None:
        return None
    for node in ast.walk(source.tree):
        if isinstance(node, ast.FunctionDef) and node.name == code.co_name:
            lines = {node.lineno, *(decorator.lineno for decorator in node.decorator_list)}
            if code.co_firstlineno in lines:
                return node
    return None


def _own(node: ast.AST) -> Iterator[ast.AST]:
    """What stands in a function, and not in another one inside it."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, (ast.FunctionDef, ast.Lambda, ast.ClassDef)):
            yield child
            yield from _own(child)


def _flat(node: ast.expr | None) -> Iterator[ast.expr]:
    if isinstance(node, (ast.Tuple, ast.List)):
        for part in node.elts:
            yield from _flat(part)
    elif node is not None:
        yield node


def _name_of(node: ast.expr) -> str | None:
    """`dq` of dq, dq.to(x), dq.numpy(); dQ of q.grad."""
    while True:
        if isinstance(node, ast.Attribute) and node.attr == "grad" and isinstance(node.value, ast.Name):
            return f"d{node.value.id}"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            node = node.func.value
        elif isinstance(node, (ast.Attribute, ast.Subscript)):
            node = node.value
        else:
            return node.id if isinstance(node, ast.Name) else None
