"""Patterns: Python with holes, `_a - _b`, that code is held against, and templates that are put
there.

A function stands for all with its last name or of its family, `@` for any operator, `*_` for any
more arguments, and `(_whole := _a + _b)` for all of a sum.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from itertools import zip_longest
from os.path import commonprefix
from typing import Any

from ...model.intermediates import in_kernels, plain
from ..kernel_file import KernelFile
from ..syntax import called, keywords
from ..text import Edit

FAMILIES = {
    "RANGE": ("range", "static_range"),
    "CLAMP": ("min", "max", "minimum", "maximum"),
    "ACCESS": ("load", "store", "atomic_add"),
    "BARRIER": ("debug_barrier", "barrier", "syncthreads"),
    "ROUNDED": ("dot", "exp", "exp2"),
}
_CLOSED = (ast.Name, ast.Constant, ast.Call, ast.Attribute, ast.Subscript)
TOKEN = re.compile(r'"[^"\n]*"|\d+\.\d*|\w+|[-+*/&|<>=!]=|//|\s+|.', re.DOTALL)
_HOLE = re.compile(r"\b(_[a-z]\w*)")
SearchResult = dict[str, ast.AST]
"""What fills each hole; `_it` is all that fits."""


def is_delta(name: str, *more: str) -> bool:
    return plain(name.lower().removeprefix("b_")) in (*in_kernels("delta"), *more)


def is_infinite(node: ast.AST) -> bool:
    match node:
        case ast.UnaryOp(operand=inner):
            return is_infinite(inner)
        case ast.Call(ast.Name("float"), [ast.Constant(word)]):
            return "inf" in str(word)
    return isinstance(node, ast.Attribute) and node.attr == "inf"


def _is_zero(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value == 0


def _is_subtracted(node: ast.AST) -> bool:
    row = node.value if isinstance(node, ast.Subscript) else node
    return isinstance(row, ast.Name) and (is_delta(row.id) or (row.id == "D" and row is not node))


HOLES: dict[str, Callable[[ast.AST], bool]] = {
    "_scale": lambda node: isinstance(node, ast.Name) and "scale" in node.id.lower(),
    "_index": lambda node: isinstance(node, ast.Name) and not node.id.isupper(),
    "_row": lambda node: isinstance(node, ast.Name) and is_delta(node.id, "lse"),
    "_number": lambda node: (
        isinstance(node, ast.Constant) and (isinstance(node.value, float) or node.value == 1)
    ),
    "_delta": _is_subtracted,
    "_zero": _is_zero,
    "_other": lambda node: not _is_zero(node),
    "_inf": is_infinite,
}


@lru_cache(maxsize=4096)
def parsed(text: str) -> ast.AST:
    try:
        node = ast.parse(text.strip()).body[0]
    except SyntaxError:  # lines that stand in brackets
        return ast.parse(f"({text})", mode="eval").body
    return node.value if isinstance(node, ast.Expr) else node


def fits(pattern: object, node: Any, found: SearchResult) -> bool:
    """Whether a node is like a pattern; notes what fills its holes."""
    match pattern:
        case ast.Name(id=name) if name[0] == "_":
            return isinstance(node, ast.AST) and _fills(name, node, found)
        case ast.NamedExpr(ast.Name(name), inner):
            return fits(inner, node, found) and _fills(name, node, found)
        case ast.Call(ast.Name(name), arguments, words):
            if not called(node) or called(node) not in FAMILIES.get(name, (name,)):
                return False
            given = keywords(node)
            is_given = all(fits(word.value, given.get(word.arg or ""), found) for word in words)
            return is_given and fits(arguments, node.args, found)
        case ast.MatMult():
            return isinstance(node, ast.operator)
        case [*first, ast.Starred()]:
            return fits(first, node[: len(first)], found)
        case list():
            return all(fits(*pair, found) for pair in zip_longest(pattern, node))
        case ast.AST() if type(node) is type(pattern):
            for field in pattern._fields:
                own, other = getattr(pattern, field), getattr(node, field)
                if field != "ctx" and not fits(own, other, found):
                    return False
            return True
    return bool(pattern == node)


def _fills(name: str, node: ast.AST, found: SearchResult) -> bool:
    if name in HOLES and not HOLES[name](node):
        return False
    first = found.setdefault(name, node)
    return first is node or ast.dump(first) == ast.dump(node)


def replaced(
    file: KernelFile, node: ast.AST, template: str, holes: Mapping[str, ast.AST | str]
) -> Edit:
    """A template in a node's place: of its text what really differs."""
    start, end = file.span(node)
    old = TOKEN.findall(file.text[start:end])
    new = TOKEN.findall(_written(file, node, template, holes))
    head = len(commonprefix([old, new]))
    tail = len(commonprefix([old[head:][::-1], new[head:][::-1]]))
    start += len("".join(old[:head]))
    end -= len("".join(old[len(old) - tail :]))
    return Edit(start, end, "".join(new[head : len(new) - tail]))


def _written(
    file: KernelFile, node: ast.AST, template: str, holes: Mapping[str, ast.AST | str]
) -> str:
    """A template with its holes filled, in brackets only where it says something else without."""
    start, end = first, last = file.span(node)
    above = next(file.above(node), None)
    is_argument = isinstance(above, ast.Call) and node is not above.func
    if isinstance(above, ast.expr) and not is_argument:
        first, last = file.span(above)
    is_operand = (first, last) != (start, end)
    parts, pairs = [file.text[first:start], "(" * is_operand], [(1, -2)] * is_operand
    for at, piece in enumerate(_HOLE.split(template)):  # every second one is a hole
        hole = holes[piece] if at % 2 else piece
        text = hole if isinstance(hole, str) else file.text_of(hole)
        is_closed = at % 2 == 0 or isinstance(parsed(text), _CLOSED)
        if not is_closed:
            pairs.append((len(parts), len(parts) + 2))
        parts += [text] if is_closed else ["(", text, ")"]
    parts += [")" * is_operand, file.text[end:last]]
    form = "{}" if isinstance(node, ast.stmt) else "({})"
    meaning = _meaning(form.format("".join(parts)))
    for left, right in pairs:
        without = [*parts]
        without[left] = without[right] = ""
        if "\n" not in parts[left + 1] and _meaning(form.format("".join(without))) == meaning:
            parts = without
    return "".join(parts[1:-1])


def _meaning(text: str) -> str:
    try:
        return ast.dump(ast.parse(text))
    except SyntaxError:
        return ""
