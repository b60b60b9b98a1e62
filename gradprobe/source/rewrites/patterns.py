"""Patterns: Python with holes, `_a - _b`, and templates.

A function stands for all with its last name or of its family, `@` for any operator, `*_` for more
arguments, and `(_whole := _a + _b)` for all of a sum.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product, repeat, takewhile, zip_longest
from os.path import commonprefix
from typing import Any

from ...model.intermediates import in_kernels, plain
from ..kernel_file import KernelFile, by_parameter
from ..syntax import (
    HINTS,
    Edit,
    Edits,
    bound_by,
    bound_in,
    called,
    calls_in,
    first_line,
    head,
    head_of,
    keywords,
    lines_of,
    ordered_names,
    parameters,
    reads_in,
    statements,
)

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
# What fills each hole; `_it` is all that fits.
Holes = dict[str, ast.AST]


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
    return isinstance(row, ast.Name) and (
        is_delta(row.id) or (row.id == "D" and row is not node)
    )


HOLES: dict[str, Callable[[ast.AST], bool]] = {
    "_scale": lambda node: isinstance(node, ast.Name) and "scale" in node.id.lower(),
    "_index": lambda node: isinstance(node, ast.Name) and not node.id.isupper(),
    "_row": lambda node: isinstance(node, ast.Name) and is_delta(node.id, "lse"),
    "_number": lambda node: (
        isinstance(node, ast.Constant) and (isinstance(node.value, float) or node.value == 1)
    ),
    "_rows": lambda node: isinstance(node, ast.Name) and node.id == "BLOCK_M",
    "_columns": lambda node: isinstance(node, ast.Name) and node.id == "BLOCK_N",
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


def fits(pattern: object, node: Any, found: Holes) -> bool:
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


def _fills(name: str, node: ast.AST, found: Holes) -> bool:
    if name in HOLES and not HOLES[name](node):
        return False
    first = found.setdefault(name, node)
    return first is node or ast.dump(first) == ast.dump(node)


def replaced(
    file: KernelFile, node: ast.AST, template: str, holes: Mapping[str, ast.AST | str]
) -> Edit:
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
    """In brackets only where it says something else without."""
    above, form = next(file.above(node), node), "{}" if isinstance(node, ast.stmt) else "({})"
    is_argument = isinstance(above, ast.Call) and node is not above.func
    is_operand = isinstance(above, ast.expr) and not is_argument
    (first, last), (start, end) = file.span(above if is_operand else node), file.span(node)
    due = found = ""
    for of_holes, of_all in product((True, False), repeat=2):
        text = _filled(file, template, holes, of_holes)
        text = f"({text})" if of_all and is_operand else text
        meaning = _meaning(form.format(file.text[first:start] + text + file.text[end:last]))
        due = due or meaning
        found = text if meaning == due else found
    return found


def _filled(
    file: KernelFile, template: str, holes: Mapping[str, ast.AST | str], is_bracketed: bool
) -> str:
    pieces = _HOLE.split(template)  # every second one is a hole
    for at in range(1, len(pieces), 2):
        hole = holes[pieces[at]]
        text = hole if isinstance(hole, str) else file.text_of(hole)
        is_open = not isinstance(parsed(text), _CLOSED) and (is_bracketed or "\n" in text)
        pieces[at] = f"({text})" if is_open else text
    return "".join(pieces)


def _meaning(text: str) -> str:
    try:
        return ast.dump(ast.parse(text))
    except SyntaxError:
        return ""


# --- spots: the statement at fault and what flows into it, down to the arguments of launches

# How far back statements are followed, and how much further an argument of a launch is than a statement beside it.
_DEEPEST, _LAUNCH = 6, 2
# (rank, edits): the least rank is tried first.
Undone = Iterator[tuple[float, Edits]]


@dataclass(frozen=True)
class Spot:
    file: KernelFile
    function: ast.FunctionDef
    statement: ast.stmt
    # A simple statement, the head of one that holds others, or one argument.
    root: ast.AST

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return list(ast.walk(self.root))

    @property
    def names(self) -> list[ast.Name]:
        return ordered_names(self.root, ast.Load)

    @property
    def reads(self) -> set[str]:
        return reads_in(self.root)

    @property
    def targets(self) -> list[str]:
        return bound_in(self.statement)

    @property
    def is_whole(self) -> bool:
        return self.root is self.statement

    @property
    def is_on_device(self) -> bool:
        return self.function in self.file.kernels

    @cached_property
    def scope(self) -> list[str]:
        found = dict.fromkeys(parameters(self.function))
        for name in ordered_names(self.function, ast.Store):
            if name.lineno < self.statement.lineno:
                found[name.id] = None
        for each in self.file.tree.body:
            if isinstance(each, (ast.Assign, ast.AnnAssign)):
                found |= dict.fromkeys(bound_in(each))
        return list(found)

    @property
    def unread(self) -> set[str]:
        return _unread(self.function) if self.is_on_device else set()

    @property
    def value(self) -> ast.expr | None:
        match self.statement if self.is_whole else None:
            case ast.Assign(value=value) | ast.AugAssign(value=value) | ast.Return(value=value):
                return None if isinstance(value, ast.Tuple) else value
            case ast.Expr(ast.Call(args=[_, value, *_])):
                return value
        return None

    def put(
        self, rank: float, node: ast.AST, template: str, new: str = ""
    ) -> tuple[float, Edits]:
        """`_it` is the node, `_new` a text."""
        return rank, (replaced(self.file, node, template, {"_it": node, "_new": new}),)


@lru_cache(maxsize=256)
def _unread(function: ast.FunctionDef) -> set[str]:
    return {*parameters(function), *bound_in(*function.body)} - reads_in(function)


def spots_of(file: KernelFile, line: int, *, grid: bool = False) -> Iterator[tuple[int, Spot]]:
    """(steps to the line, spot), nearest first; of a `def` all statements from the last up."""
    around = [each for each in file.functions if first_line(each) <= line < lines_of(each).stop]
    if not around:
        return
    function = max(around, key=first_line)
    own = list[ast.stmt]()
    for statement in _statements(function):
        if line in head_of(statement):
            own.append(statement)
    levels, seen = defaultdict[int, list[Spot]](list), set[ast.AST]()
    levels[0] += _grids(file) if grid else ()
    levels[0] += _wholes(file, function, own[-1:] or _statements(function)[::-1])
    for distance in range(_DEEPEST + 1):
        for spot in levels[distance]:
            if spot.root not in seen:
                seen.add(spot.root)
                yield distance, spot
                for steps, each in _nearby(spot):
                    levels[distance + steps].append(each)


def spots_in(file: KernelFile, function: ast.FunctionDef) -> Iterator[Spot]:
    yield Spot(file, function, function, function.args)
    yield from _wholes(file, function, _statements(function))


@lru_cache(maxsize=256)
def _statements(function: ast.FunctionDef) -> list[ast.stmt]:
    return list(statements(function.body))


def _wholes(
    file: KernelFile, function: ast.FunctionDef, several: Iterable[ast.stmt]
) -> Iterator[Spot]:
    for statement in several:
        # Another value in `x = tl.multiple_of(x, ...)` would hide what x was computed to be.
        is_hint = isinstance(statement, ast.Assign) and called(statement.value) in HINTS
        root = head(statement)
        if root is not None and not is_hint:
            yield Spot(file, function, statement, root)


def _nearby(spot: Spot) -> Iterator[tuple[int, Spot]]:
    file, function, statement = spot.file, spot.function, spot.statement
    names = spot.reads.union(spot.targets if isinstance(statement, ast.AugAssign) else ())
    before, behind = list[ast.stmt](), list[ast.stmt]()
    for each in _statements(function):
        if each is not statement and names.intersection(bound_by(each)):
            (before if each.lineno < statement.lineno else behind).append(each)
    behind += takewhile(lambda above: above is not function, file.above(statement))
    near = list(_wholes(file, function, [*before[::-1], *behind]))
    for helper in file.functions:
        if helper is not function and calls_in(spot.root, helper.name):
            near += _wholes(file, helper, _statements(helper)[::-1])
    yield from zip(repeat(1), near)
    yield from zip(repeat(_LAUNCH), _passed(spot))


def _passed(spot: Spot) -> Iterator[Spot]:
    names = parameters(spot.function)
    for call, host in spot.file.callers_of(spot.function.name):
        passed: list[ast.AST] = [each for each in call.args if isinstance(each, ast.Starred)]
        given = {} if passed else dict(by_parameter(call, names))
        for name in filter(given.__contains__, names):
            if name in spot.reads:
                passed.append(given[name])
        for argument in passed:
            yield Spot(spot.file, host, spot.file.statement(call), argument)


def _grids(file: KernelFile) -> Iterator[Spot]:
    for kernel in file.functions:
        for call, host in file.callers_of(kernel.name):
            if isinstance(call.func, ast.Subscript):
                yield Spot(file, host, file.statement(call), call.func.slice)
