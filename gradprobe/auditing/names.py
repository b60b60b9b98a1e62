"""Names: what parameters and variables of a hand-written reference are called, and the lines of its statements."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import Any

from ..model.intermediates import SUBEXPRESSIONS, TABLE, plain
from ..targets.parameters import canonical_name
from ..targets.returned import statements_of

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
# What stands behind the name of an input in much code, and of a variable.
_ENDINGS = ("_in", "_ref", "_np", "_t", "_f", "_mat", "_tensor")
_COPIES = ("_ref", "_manual", "_torch", "_expected", "_np", "_hat", "_fp32", "_f32", "_f64")


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
    for ending in _COPIES:
        word = word.removesuffix(ending)
    return _RESULTS.get(plain(word.removeprefix("ref_")))


def return_line(function: Callable[..., Any], *, backward: bool = False) -> int | None:
    """The line of a function's last return statement; with `backward`, of its last call of that, where it has one."""
    lines: list[int] = []
    calls: list[int] = []
    for node in statements_of(function):
        if isinstance(node, ast.Return):
            lines.append(node.lineno)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            calls += [node.lineno] if node.func.attr in ("backward", "grad") else []
    return max((calls if backward else []) or lines, default=None)


def line_of_role(function: Callable[..., Any], role: str) -> int | None:
    """The line of the one statement that makes a variable named after an intermediate; None where there are others."""
    lines = {line for line, name in _assigned(function) if role_of(name) == role}
    return lines.pop() if len(lines) == 1 else None


def _assigned(function: Callable[..., Any]) -> Iterator[tuple[int, str]]:
    for node in statements_of(function):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if isinstance(node, (ast.Assign, ast.AugAssign)):
            yield from ((node.lineno, target.id) for target in targets if isinstance(target, ast.Name))
