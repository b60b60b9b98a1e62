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
# What binds more strongly than any operator.
_CLOSED = (ast.Name, ast.Constant, ast.Call, ast.Attribute, ast.Subscript)
TOKEN = re.compile(r'"[^"\n]*"|\d+\.\d*|\w+|[-+*/&|<>=!]=|//|\s+|.', re.DOTALL)
_HOLE = re.compile(r"\b(_[a-z]\w*)")
Found = dict[str, ast.AST]
"""What fills the holes of a pattern, by their names; `_it` is all that fits."""


def is_delta(name: str, *more: str) -> bool:
    """Whether a row is called as those are that are subtracted from dP."""
    word = plain(name.lower().removeprefix("b_"))
    return word in (*in_kernels("delta"), *more)


def is_infinite(node: ast.AST) -> bool:
    """Whether it is inf or -inf."""
    match node:
        case ast.UnaryOp(operand=inner):
            return is_infinite(inner)
        case ast.Call(ast.Name("float"), [ast.Constant(word)]):
            return "inf" in str(word)
        case ast.Attribute(attr=name):
            return name == "inf"
    return False


def _is_zero(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value == 0


def _is_number(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and (isinstance(node.value, float) or node.value == 1)


def _is_subtracted(node: ast.AST) -> bool:
    row = node.value if isinstance(node, ast.Subscript) else node
    if not isinstance(row, ast.Name):
        return False
    return plain(row.id) in in_kernels("delta") or (row.id == "D" and row is not node)


HOLES: dict[str, Callable[[ast.AST], bool]] = {
    "_scale": lambda node: isinstance(node, ast.Name) and "scale" in node.id.lower(),
    "_index": lambda node: isinstance(node, ast.Name) and not node.id.isupper(),
    "_row": lambda node: isinstance(node, ast.Name) and is_delta(node.id, "lse"),
    "_number": _is_number,
    "_delta": _is_subtracted,
    "_zero": _is_zero,
    "_other": lambda node: not _is_zero(node),
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
    when: Callable[[KernelFile, Found], bool] | None = None

    def edit(self, file: KernelFile, found: Found) -> Edit:
        """The edit of what fits."""
        node = found["_it"]
        if self.text[0] == ".":
            assert isinstance(node, ast.Call)
            return file.renamed(node, self.text[1:])
        return replaced(file, found[self.place], self.text, found)


def swaps(*several: tuple[float, str, str]) -> tuple[Swap, ...]:
    """Of (rank, pattern, text)."""
    return tuple(Swap(pattern, text, rank) for rank, pattern, text in several)


def fitting(file: KernelFile, nodes: Iterable[ast.AST], several: tuple[Swap, ...]) -> Iterator[tuple[Swap, Found]]:
    """Each of some swaps at each node that it fits, with what fills its holes."""
    by_kind = _by_kind(several)
    for node in nodes:
        for swap in by_kind.get(type(node), ()):
            found = {"_it": node}
            if not _fits(parsed(swap.pattern), node, found):
                continue
            if swap.text[0] == "." and not isinstance(node.func, ast.Attribute):  # type: ignore[attr-defined]
                continue
            if swap.when is None or swap.when(file, found):
                yield swap, found


@lru_cache(maxsize=64)
def _by_kind(several: tuple[Swap, ...]) -> dict[type[ast.AST], list[Swap]]:
    found: dict[type[ast.AST], list[Swap]] = {}
    for swap in several:
        found.setdefault(type(parsed(swap.pattern)), []).append(swap)
    return found


@lru_cache(maxsize=4096)
def parsed(text: str) -> ast.AST:
    """An expression or a statement."""
    try:
        node = ast.parse(text.strip()).body[0]
    except SyntaxError:  # lines that stand in brackets
        return ast.parse(f"({text})", mode="eval").body
    return node.value if isinstance(node, ast.Expr) else node


def _fits(pattern: object, node: object, found: Found) -> bool:
    match pattern:
        case ast.Name(id=name) if name[0] == "_":
            return isinstance(node, ast.AST) and _fills(name, node, found)
        case ast.NamedExpr(ast.Name(name), inner):
            return _fits(inner, node, found) and _fills(name, node, found)  # type: ignore[arg-type]
        case ast.Call(ast.Name(name), arguments, words):
            if not isinstance(node, ast.Call) or called(node) not in FAMILIES.get(name, (name,)):
                return False
            given = {word.arg: word.value for word in node.keywords}
            if not all(_fits(word.value, given.get(word.arg), found) for word in words):
                return False
            return _all_fit(arguments, node.args, found)
        case ast.MatMult():
            return isinstance(node, ast.operator)
        case ast.AST():
            if type(node) is not type(pattern):
                return False
            fields = [field for field in pattern._fields if field != "ctx"]
            return all(_fits(getattr(pattern, field), getattr(node, field), found) for field in fields)
        case list():
            return isinstance(node, list) and _all_fit(pattern, node, found)
    return pattern == node


def _all_fit(patterns: list[ast.expr], nodes: list[ast.expr], found: Found) -> bool:
    if patterns and isinstance(patterns[-1], ast.Starred):
        patterns = patterns[:-1]
        nodes = nodes[: len(patterns)]
    if len(patterns) != len(nodes):
        return False
    return all(_fits(*pair, found) for pair in zip(patterns, nodes, strict=True))


def _fills(name: str, node: ast.AST, found: Found) -> bool:
    if name in HOLES and not HOLES[name](node):
        return False
    first = found.setdefault(name, node)
    return first is node or ast.dump(first) == ast.dump(node)


def replaced(file: KernelFile, node: ast.AST, template: str, holes: Mapping[str, ast.AST | str]) -> Edit:
    """What a template gives in a node's place: of its text what really differs."""
    start, end = file.span(node)
    text = _written(file, node, template, holes)
    old, new = TOKEN.findall(file.text[start:end]), TOKEN.findall(text)
    head = len(commonprefix([old, new]))
    tail = len(commonprefix([old[head:][::-1], new[head:][::-1]]))
    start += len("".join(old[:head]))
    end -= len("".join(old[len(old) - tail :]))
    return Edit(start, end, "".join(new[head : len(new) - tail]))


def _written(file: KernelFile, node: ast.AST, template: str, holes: Mapping[str, ast.AST | str]) -> str:
    """A template with its holes filled, in brackets only where it would say something else without them."""
    pieces = _HOLE.split(template)  # every second one is a hole
    for at in range(1, len(pieces), 2):
        hole = holes[pieces[at]]
        pieces[at] = hole if isinstance(hole, str) else file.text_of(hole)
    needed = {at for at in range(1, len(pieces), 2) if not isinstance(parsed(pieces[at]), _CLOSED)}
    before, after = _around(file, node)
    if before or after:
        needed.add(-1)
    form = "{}" if isinstance(node, ast.stmt) else "({})"
    meaning = _meaning(form.format(before + _joined(pieces, needed) + after))
    for at in sorted(needed):
        text = before + _joined(pieces, needed - {at}) + after
        if "\n" not in pieces[at] and _meaning(form.format(text)) == meaning:
            needed.remove(at)
    return _joined(pieces, needed)


def _around(file: KernelFile, node: ast.AST) -> tuple[str, str]:
    """What stands before and behind an operand, as far as it says which brackets it needs."""
    above = next(file.above(node), None)
    if not isinstance(above, ast.expr) or (isinstance(above, ast.Call) and node is not above.func):
        return "", ""
    (first, last), (start, end) = file.span(above), file.span(node)
    return file.text[first:start], file.text[end:last]


def _joined(pieces: list[str], bracketed: set[int]) -> str:
    """The pieces as one text, some of them in brackets; of -1 all of it."""
    text = "".join(f"({piece})" if at in bracketed else piece for at, piece in enumerate(pieces))
    return f"({text})" if -1 in bracketed else text


def _meaning(text: str) -> str:
    """A text as it is understood; "" where it is no Python."""
    try:
        return ast.dump(ast.parse(text))
    except SyntaxError:
        return ""
