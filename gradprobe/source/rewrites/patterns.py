"""Patterns: Python with holes, `_a - _b`, that pieces of a file are held against, and templates that are put there.

In a pattern a function stands for all with its last name, one of FAMILIES for each of those, `@` for any operator, and
`*_` for any more arguments; `(_whole := _a + _b)` is a hole for all of a sum. A hole's name may say what it takes, as
HOLES have it; the same hole takes the same text.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from os.path import commonprefix

from ...model.intermediates import in_kernels, plain
from ..kernel_file import KernelFile, called
from ..text import Edit

FAMILIES = {
    "RANGE": ("range", "static_range"),
    "CLAMP": ("min", "max", "minimum", "maximum"),
    "ACCESS": ("load", "store", "atomic_add"),
    "BARRIER": ("debug_barrier", "barrier", "syncthreads"),
    "ROUNDED": ("dot", "exp", "exp2"),
}
# How strongly operators bind, from the weakest on; whatever is not here binds as names do.
_BINDING: tuple[tuple[type[ast.AST], ...], ...] = (
    (ast.Tuple, ast.Starred, ast.NamedExpr), (ast.Lambda, ast.IfExp), (ast.Or,), (ast.And,), (ast.Not,),
    (ast.Compare,), (ast.BitOr,), (ast.BitXor,), (ast.BitAnd,), (ast.LShift, ast.RShift), (ast.Add, ast.Sub),
    (ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.MatMult), (ast.UnaryOp,), (ast.Pow,),
)  # fmt: skip
_LEVELS = {kind: level for level, kinds in enumerate(_BINDING, 1) for kind in kinds}
_CLOSED = len(_BINDING) + 1
TOKEN = re.compile(r'"[^"\n]*"|\d+\.\d*|\w+|[-+*/&|<>=!]=|//|\s+|.', re.DOTALL)
_HOLE = re.compile(r"\b_[a-z]\w*")
Holes = Mapping[str, "ast.AST | str"]


def is_delta(name: str, *more: str) -> bool:
    """Whether a row is called as those are that are subtracted from dP."""
    return plain(name.lower().removeprefix("b_")) in (*in_kernels("delta"), *more)


def is_infinite(node: ast.AST) -> bool:
    """Whether it is inf or -inf."""
    match node:
        case ast.UnaryOp(operand=inner):
            return is_infinite(inner)
        case ast.Call(ast.Name("float"), [ast.Constant(word)]):
            return "inf" in str(word)
    return isinstance(node, ast.Attribute) and node.attr == "inf"


def is_zero(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value == 0


def _is_subtracted(node: ast.AST) -> bool:
    match node:
        case ast.Name(name):
            return plain(name) in in_kernels("delta")
        case ast.Subscript(ast.Name(name)):
            return plain(name) in in_kernels("delta") or name == "D"
    return False


HOLES: dict[str, Callable[[ast.AST], bool]] = {
    "_scale": lambda node: isinstance(node, ast.Name) and "scale" in node.id.lower(),
    "_index": lambda node: isinstance(node, ast.Name) and not node.id.isupper(),
    "_number": lambda node: isinstance(node, ast.Constant) and (isinstance(node.value, float) or node.value == 1),
    "_delta": _is_subtracted,
    "_zero": is_zero,
    "_other": lambda node: not is_zero(node),
    "_inf": is_infinite,
}


@dataclass(frozen=True)
class Swap:
    """What is put in a pattern's place."""

    pattern: str
    text: str
    """A template; ".name": what is called gets another name, of the same module."""
    rank: float = 0.0
    """How late it is tried as an edit."""
    place: str = "_it"
    """The hole whose text is replaced, and not all of it."""
    fault: str = ""
    """The class of the fault that it plants, where its row does not say."""
    when: Callable[[KernelFile, ast.AST, dict[str, ast.AST]], bool] | None = None

    def edit_of(self, file: KernelFile, node: ast.AST) -> tuple[ast.AST, Edit] | None:
        """What is lost, and the edit; None where a node is no such thing."""
        holes = {"_it": node}
        if not _fits(parsed(self.pattern), node, holes):
            return None
        if self.when is not None and not self.when(file, node, holes):
            return None
        lost = holes.get("_lost", node)
        if self.text[0] == ".":
            is_method = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
            return (lost, file.renamed(node, self.text[1:])) if is_method else None  # type: ignore[arg-type]
        return lost, replaced(file, holes[self.place], self.text, holes)


def swaps(*several: tuple[float, str, str]) -> tuple[Swap, ...]:
    """Of (rank, pattern, text)."""
    return tuple(Swap(pattern, text, rank) for rank, pattern, text in several)


@lru_cache(maxsize=4096)
def parsed(text: str) -> ast.AST:
    """An expression or a statement."""
    try:
        node = ast.parse(text.strip()).body[0]
    except SyntaxError:  # lines that stand in brackets
        return ast.parse(f"({text})", mode="eval").body
    return node.value if isinstance(node, ast.Expr) else node


def _fits(pattern: object, node: object, holes: dict[str, ast.AST]) -> bool:
    match pattern:
        case ast.Name(id=name) if name[0] == "_":
            return isinstance(node, ast.AST) and _fills(name, node, holes)
        case ast.NamedExpr(ast.Name(name), inner):
            return _fits(inner, node, holes) and _fills(name, node, holes)  # type: ignore[arg-type]
        case ast.Call(ast.Name(name), arguments, words):
            if not isinstance(node, ast.Call) or called(node) not in FAMILIES.get(name, (name,)):
                return False
            given = {word.arg: word.value for word in node.keywords}
            are_there = all(_fits(word.value, given.get(word.arg), holes) for word in words)
            return are_there and _all_fit(arguments, node.args, holes)
        case ast.MatMult():
            return isinstance(node, ast.operator)
        case ast.AST():
            if type(node) is not type(pattern):
                return False
            fields = (field for field in pattern._fields if field != "ctx")
            return all(_fits(getattr(pattern, field), getattr(node, field), holes) for field in fields)
        case list():
            return isinstance(node, list) and _all_fit(pattern, node, holes)
    return pattern == node


def _all_fit(patterns: list[ast.expr], nodes: list[ast.expr], holes: dict[str, ast.AST]) -> bool:
    is_open = bool(patterns) and isinstance(patterns[-1], ast.Starred)
    count = len(patterns) - is_open
    right = len(nodes) >= count if is_open else len(nodes) == count
    return right and all(_fits(*pair, holes) for pair in zip(patterns[:count], nodes, strict=False))


def _fills(name: str, node: ast.AST, holes: dict[str, ast.AST]) -> bool:
    if name in HOLES and not HOLES[name](node):
        return False
    first = holes.setdefault(name, node)
    return first is node or ast.dump(first) == ast.dump(node)


def _level(node: ast.AST) -> int:
    kind = getattr(node, "op", node) if isinstance(node, (ast.BinOp, ast.BoolOp)) else node
    kind = node.op if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not) else kind
    return _LEVELS.get(type(kind), _CLOSED)


def _level_at(above: ast.AST, node: ast.AST) -> int:
    """How strongly what stands in a node's place is to bind, to need no brackets."""
    match above:
        case ast.BinOp():
            return _level(above) + (node is above.right)
        case ast.Compare():
            return _level(above) + 1
        case ast.UnaryOp() | ast.BoolOp():
            return _level(above)
        case ast.Attribute():
            return _CLOSED
        case ast.Subscript(value=value) | ast.Call(func=value) if value is node:
            return _CLOSED
    return 0


@lru_cache(maxsize=1024)
def _levels(template: str) -> dict[str, int]:
    """The same of each hole of a template."""
    root, found = parsed(template), dict[str, int]()
    for above in ast.walk(root):
        for node in ast.iter_child_nodes(above):
            if isinstance(node, ast.Name):
                found[node.id] = max(_level_at(above, node), found.get(node.id, 0))
    return found


def written(file: KernelFile, template: str, holes: Holes) -> str:
    """A template with its holes filled: nodes as they are written, in brackets only where they need some."""
    levels = _levels(template)

    def filled(match: re.Match[str]) -> str:
        hole, least = holes[match[0]], levels.get(match[0], 0)
        if isinstance(hole, str):
            return f"({hole})" if _level(parsed(hole)) < least else hole
        text, level = file.text_of(hole), _level(hole)
        is_kept = level < _CLOSED and least and _is_bracketed(file, hole)
        return f"({text})" if level < least or is_kept or (level < _CLOSED and "\n" in text) else text

    return _HOLE.sub(filled, template)


def _is_bracketed(file: KernelFile, node: ast.AST) -> bool:
    start, end = file.span(node)
    is_argument = isinstance(next(file.above(node), None), ast.Call)
    return not is_argument and file.text[start - 1 : start] == "(" and file.text[end : end + 1] == ")"


def replaced(file: KernelFile, node: ast.AST, template: str, holes: Holes) -> Edit:
    """What a template gives in a node's place: of its text what really differs."""
    text, (start, end) = written(file, template, holes), file.span(node)
    root = holes.get(template, parsed(template))
    level = _level(parsed(root) if isinstance(root, str) else root)
    above = next(file.above(node), None)
    if above is not None and level < _level_at(above, node) and not _is_bracketed(file, node):
        text = f"({text})"
    old, new = TOKEN.findall(file.text[start:end]), TOKEN.findall(text)
    head = len(commonprefix([old, new]))
    tail = len(commonprefix([old[head:][::-1], new[head:][::-1]]))
    start, end = start + len("".join(old[:head])), end - len("".join(old[len(old) - tail :]))
    return Edit(start, end, "".join(new[head : len(new) - tail]))


@lru_cache(maxsize=64)
def _by_kind(several: tuple[Swap, ...]) -> dict[type[ast.AST], list[Swap]]:
    found: dict[type[ast.AST], list[Swap]] = {}
    for rule in several:
        found.setdefault(type(parsed(rule.pattern)), []).append(rule)
    return found


def applied(
    file: KernelFile, nodes: Iterable[ast.AST], several: tuple[Swap, ...]
) -> Iterator[tuple[Swap, ast.AST, ast.AST, Edit]]:
    """Each rule at each node that it fits, with what is lost there and the edit."""
    by_kind = _by_kind(several)
    for node in nodes:
        for rule in by_kind.get(type(node), ()):
            changed = rule.edit_of(file, node)
            if changed is not None:
                yield rule, node, *changed
