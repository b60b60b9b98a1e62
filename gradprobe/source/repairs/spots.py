"""Spots: the statement at fault and those that flow into it, the nearest first, down to the arguments of the launch."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache

from ..kernel_file import KernelFile
from ..operators.addresses import parameters
from ..triton_source import HINTS, blocks, bound_in

# How far back statements are followed, and how much further an argument of a launch is than a statement beside it.
_DEEPEST, _LAUNCH = 6, 2


class GridRole(Enum):
    """Whether a fault may be how many programs there are."""

    FAR = "no"
    NEAR = "maybe"
    FIRST = "likely"


@dataclass(frozen=True)
class Spot:
    """A statement, or an argument of a call, in which the fault may lie."""

    function: ast.FunctionDef
    statement: ast.stmt
    roots: tuple[ast.AST, ...]
    """What of it may be changed: all of a simple statement, the head of one that holds others, one argument."""
    distance: int
    """How many steps the values take from here to the line at fault."""

    @property
    def names(self) -> list[ast.Name]:
        """The names that are read here, in the order of the text."""
        found = [node for root in self.roots for node in ast.walk(root) if isinstance(node, ast.Name)]
        read = [node for node in found if isinstance(node.ctx, ast.Load)]
        return sorted(read, key=lambda node: (node.lineno, node.col_offset))


def spots_of(file: KernelFile, line: int, grid: GridRole = GridRole.FAR) -> Iterator[Spot]:
    """Where the fault of a line may lie, nearest first; of the line of a `def`, its statements from the last one up.

    Args:
        grid: where the grids of the launches stand of the kernel, or of what is allocated at the line.
    """
    found = _statement_at(file, line)
    if found is None:
        return
    function, statement = found
    if statement is not function:
        waiting = [Spot(function, statement, _roots(statement), 0)]
    else:
        inner = reversed([each for each in _statements(function) if each is not function])
        waiting = [Spot(function, each, _roots(each), 0) for each in inner]
    grids = list(_grids(file, function, statement)) if grid != GridRole.FAR else []
    further = 2 * _LAUNCH if grid == GridRole.FIRST else 0
    waiting = [*grids, *(replace(spot, distance=spot.distance + further) for spot in waiting)]
    seen: set[ast.AST] = set()
    while waiting:
        spot = waiting.pop(0)
        if spot.roots and spot.roots[0] not in seen:
            seen.add(spot.roots[0])
            yield spot
            nearer = [*_assigning(file, spot), *_around(file, spot), *_passed(file, spot), *_called(file, spot)]
            waiting = sorted([*waiting, *(each for each in nearer if each.distance <= _DEEPEST)], key=_distance)


def _distance(spot: Spot) -> int:
    return spot.distance


def _statement_at(file: KernelFile, line: int) -> tuple[ast.FunctionDef, ast.stmt] | None:
    """The innermost statement with a line, and the innermost function around it; a `def` is its own statement."""
    around = [each for each in file.functions if _first(each) <= line <= (each.end_lineno or each.lineno)]
    if not around:
        return None
    function = max(around, key=_first)
    inner = [each for each in _statements(function) if each.lineno <= line <= _last(each)]
    return function, max(inner, key=lambda each: each.lineno, default=function)


def _first(function: ast.FunctionDef) -> int:
    return min([function.lineno, *(each.lineno for each in function.decorator_list)])


def _last(statement: ast.stmt) -> int:
    """The last line of a statement; of one that holds others, of its head."""
    body = getattr(statement, "body", None)
    return max(statement.lineno, body[0].lineno - 1) if body else statement.end_lineno or statement.lineno


@lru_cache(maxsize=256)
def _statements(function: ast.FunctionDef) -> list[ast.stmt]:
    """The statements of a function at any depth, in the order of the text, without its docstring."""
    found, waiting = list[ast.stmt](), list(function.body)
    while waiting:
        statement = waiting.pop(0)
        found.append(statement)
        waiting = [each for block in blocks(statement) for each in block] + waiting
    return [each for each in found if not (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant))]


def _roots(statement: ast.stmt) -> tuple[ast.AST, ...]:
    if isinstance(statement, (ast.For, ast.AsyncFor)):
        return (statement.iter,)
    if isinstance(statement, (ast.If, ast.While)):
        return (statement.test,)
    return () if blocks(statement) or _is_hint(statement) else (statement,)


def _is_hint(statement: ast.stmt) -> bool:
    """Whether a statement is `x = tl.multiple_of(x, ...)`: another value there would hide what x was computed to be."""
    match statement:
        case ast.Assign([ast.Name(made)], ast.Call(ast.Attribute(attr=called), [ast.Name(of), *_])):
            return called in HINTS and made == of
    return False


def _assigning(file: KernelFile, spot: Spot) -> Iterator[Spot]:
    """The statements of the function that give the spot's names their values: those before it, the nearest first."""
    names = {node.id for node in spot.names}
    if isinstance(spot.statement, ast.AugAssign):
        names |= set(bound_in([spot.statement]))
    found = [each for each in _statements(spot.function) if each is not spot.statement and names & _bound(each)]
    before = [each for each in reversed(found) if each.lineno < spot.statement.lineno]
    for each in [*before, *(each for each in found if each.lineno > spot.statement.lineno)]:
        yield Spot(spot.function, each, _roots(each), spot.distance + 1)


def _bound(statement: ast.stmt) -> set[str]:
    if isinstance(statement, ast.For):
        return set(bound_in([statement.target]))
    return set() if blocks(statement) else set(bound_in([statement]))


def _around(file: KernelFile, spot: Spot) -> Iterator[Spot]:
    """The heads of the loops and branches that it stands in."""
    for above in file.above(spot.statement):
        if above is spot.function:
            return
        if isinstance(above, ast.stmt) and _roots(above):
            yield Spot(spot.function, above, _roots(above), spot.distance + 1)


def _passed(file: KernelFile, spot: Spot) -> Iterator[Spot]:
    """What callers pass for the parameters that are read here."""
    read, names = {node.id for node in spot.names}, parameters(spot.function)
    for call in calls_of(file, spot.function.name):
        host = next((each for each in file.above(call) if isinstance(each, ast.FunctionDef)), None)
        if host is None or host is spot.function:
            continue
        given = dict(zip(names, call.args, strict=False)) | {word.arg: word.value for word in call.keywords if word.arg}
        starred: list[ast.expr] = [each for each in call.args if isinstance(each, ast.Starred)]
        for argument in starred or [given[name] for name in names if name in read and name in given]:
            yield Spot(host, file.statement(call), (argument,), spot.distance + _LAUNCH)


def calls_of(file: KernelFile, name: str) -> list[ast.Call]:
    """The calls of a function by its name, `f(...)`, and its launches, `f[grid](...)`."""
    bases = ((node, node.func.value if isinstance(node.func, ast.Subscript) else node.func) for node in _calls(file))
    return [node for node, base in bases if isinstance(base, ast.Name) and base.id == name]


@lru_cache(maxsize=64)
def _calls(file: KernelFile) -> tuple[ast.Call, ...]:
    return tuple(node for node in ast.walk(file.tree) if isinstance(node, ast.Call))


def _grids(file: KernelFile, function: ast.FunctionDef, statement: ast.stmt) -> Iterator[Spot]:
    """Of the launches of a kernel; in host code, of those that are given what a statement makes."""
    made = set(bound_in([statement])) if function not in file.kernels else set()
    given = [each for kernel in file.kernels for each in calls_of(file, kernel.name) if made & _names(each)]
    for call in [*calls_of(file, function.name), *given]:
        host = next((each for each in file.above(call) if isinstance(each, ast.FunctionDef)), None)
        if host is not None and isinstance(call.func, ast.Subscript):
            yield Spot(host, file.statement(call), (call.func.slice,), 0)


def _names(call: ast.Call) -> set[str]:
    given = (*call.args, *(word.value for word in call.keywords))
    return {each.id for each in given if isinstance(each, ast.Name)}


def _called(file: KernelFile, spot: Spot) -> Iterator[Spot]:
    """The statements of the functions of the file that are called here, from the last one up."""
    calls = [node for root in spot.roots for node in ast.walk(root) if isinstance(node, ast.Call)]
    names = {node.func.id for node in calls if isinstance(node.func, ast.Name)}
    for function in file.functions:
        if function.name in names and function is not spot.function:
            for each in reversed(_statements(function)):
                yield Spot(function, each, _roots(each), spot.distance + 1)
