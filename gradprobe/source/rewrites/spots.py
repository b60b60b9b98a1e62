"""Spots: the statement at fault and what flows into it, down to the arguments of launches."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import repeat, takewhile

from ..kernel_file import KernelFile, by_parameter
from ..syntax import (
    HINTS,
    bound_by,
    bound_in,
    called,
    calls_in,
    first_line,
    head,
    head_of,
    lines_of,
    ordered_names,
    parameters,
    reads_in,
    statements,
)
from ..text import Edits
from .patterns import replaced

# How far back statements are followed, and how much further an argument of a launch is than a statement beside it.
_DEEPEST, _LAUNCH = 6, 2
Undone = Iterator[tuple[float, Edits]]
"""(rank, edits): the least rank is tried first."""


@dataclass(frozen=True)
class Spot:
    file: KernelFile
    function: ast.FunctionDef
    statement: ast.stmt
    root: ast.AST
    """All of a simple statement, the head of one that holds others, or one argument."""

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
        """The names of its kernel that nothing reads: what did may have been dropped."""
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
        """A template in a node's place: `_it` is the node, `_new` a text."""
        return rank, (replaced(self.file, node, template, {"_it": node, "_new": new}),)


@lru_cache(maxsize=256)
def _unread(function: ast.FunctionDef) -> set[str]:
    return {*parameters(function), *bound_in(*function.body)} - reads_in(function)


def spots_of(file: KernelFile, line: int, *, grid: bool = False) -> Iterator[tuple[int, Spot]]:
    """(steps to the line, spot) where its fault may lie, nearest first, also in the grids of
    launches.

    Of the line of a `def` all statements are meant, from the last one up.
    """
    around = [each for each in file.functions if first_line(each) <= line < lines_of(each).stop]
    if not around:
        return
    function = max(around, key=first_line)
    own = [each for each in _statements(function) if line in head_of(each)]
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
        passed += [given[name] for name in names if name in spot.reads and name in given]
        for argument in passed:
            yield Spot(spot.file, host, spot.file.statement(call), argument)


def _grids(file: KernelFile) -> Iterator[Spot]:
    for kernel in file.functions:
        for call, host in file.callers_of(kernel.name):
            if isinstance(call.func, ast.Subscript):
                yield Spot(file, host, file.statement(call), call.func.slice)
