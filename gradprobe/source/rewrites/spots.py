"""Spots: the statement at fault and those that flow into it, the nearest first, down to the arguments of launches."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache

from ..kernel_file import KernelFile, arguments_of, called, calls_of, inside, parameters
from ..reach import head_of, statements
from ..text import Edit
from ..triton_source import HINTS, blocks, bound_in
from .patterns import replaced

# How far back statements are followed, and how much further an argument of a launch is than a statement beside it.
_DEEPEST, _LAUNCH = 6, 2
Edits = tuple[Edit, ...]
Ranked = tuple[float, Edits]
Undone = Iterator[Ranked]
"""(rank, edits): the least rank is tried first."""


def place_of(node: ast.stmt | ast.expr) -> tuple[int, int]:
    """Where a node begins in the text, to sort by."""
    return node.lineno, node.col_offset


def names_read(root: ast.AST) -> list[ast.Name]:
    """The names that are read in a node, in the order of the text."""
    found = [node for node in inside(root, ast.Name) if isinstance(node.ctx, ast.Load)]
    return sorted(found, key=place_of)


@dataclass(frozen=True)
class Spot:
    """A statement, or an argument of a call, in which the fault may lie."""

    file: KernelFile
    function: ast.FunctionDef
    statement: ast.stmt
    root: ast.AST
    """What of it may be changed: all of a simple statement, the head of one that holds others, one argument."""

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return list(ast.walk(self.root))

    @cached_property
    def names(self) -> list[ast.Name]:
        """The names that are read here, in the order of the text."""
        return names_read(self.root)

    @cached_property
    def reads(self) -> set[str]:
        """The same as words."""
        return {node.id for node in self.names}

    @property
    def targets(self) -> list[str]:
        """The names that its statement binds."""
        return list(bound_in([self.statement]))

    @property
    def is_whole(self) -> bool:
        """Whether all of a simple statement may be changed."""
        return self.root is self.statement

    @property
    def is_on_device(self) -> bool:
        return self.function in self.file.kernels

    @property
    def loops(self) -> list[ast.For | ast.While]:
        """Those around it, the innermost first."""
        return [each for each in self.file.above(self.statement) if isinstance(each, (ast.For, ast.While))]

    @cached_property
    def scope(self) -> list[str]:
        """The names that have a value here: parameters, what is assigned above, and what the module assigns."""
        module = [each for each in self.file.tree.body if isinstance(each, (ast.Assign, ast.AnnAssign))]
        above = [each for each in inside(self.function, ast.Name) if each.lineno < self.statement.lineno]
        above.sort(key=place_of)
        return list(dict.fromkeys([*parameters(self.function), *bound_in([*above, *module])]))

    @property
    def unread(self) -> frozenset[str]:
        """The names of its kernel that nothing reads: whoever dropped a term, a factor or a mask left its name."""
        return _unread(self.function) if self.is_on_device else frozenset()

    @property
    def value(self) -> ast.expr | None:
        """What a whole statement assigns, returns, or stores at an address, itself or by a helper."""
        if not self.is_whole:
            return None
        match self.statement:
            case ast.Assign(value=value) | ast.AugAssign(value=value) | ast.Return(value=value):
                return None if isinstance(value, ast.Tuple) else value
            case ast.Expr(ast.Call(args=[_, value, *_])):
                return value
        return None

    def calls(self, *names: str) -> list[ast.Call]:
        """The calls here of what has one of some names."""
        return [node for node in self.nodes if isinstance(node, ast.Call) and called(node) in names]

    def put(self, rank: float, node: ast.AST, template: str, **holes: ast.AST | str) -> Ranked:
        """A template in a node's place: its holes are filled with nodes or texts, `_it` with the node itself."""
        return rank, (replaced(self.file, node, template, {"_it": node, **holes}),)


@lru_cache(maxsize=256)
def _unread(function: ast.FunctionDef) -> frozenset[str]:
    read = {name.id for name in names_read(function)}
    return frozenset({*parameters(function), *bound_in(function.body)} - read)


def spots_of(file: KernelFile, line: int, *, grid: bool = False) -> Iterator[tuple[int, Spot]]:
    """Where the fault of a line may lie, nearest first; of the line of a `def`, its statements from the last one up.

    Args:
        grid: whether also in the grids of launches.

    Yields:
        How many steps the values take from there to the line, and the spot.
    """
    around = [each for each in file.functions if _first(each) <= line <= (each.end_lineno or each.lineno)]
    if not around:
        return
    function = max(around, key=_first)
    inner = [each for each in _statements(function) if line in head_of(each)]
    own = inner[-1:] or _statements(function)[::-1]
    near = [*(_grids(file) if grid else ()), *_wholes(file, function, own)]
    waiting, seen = [(0, each) for each in near], set[ast.AST]()
    while waiting:
        distance, spot = waiting.pop(0)
        if spot.root in seen:
            continue
        seen.add(spot.root)
        yield distance, spot
        for steps, each in _nearby(spot):
            if distance + steps <= _DEEPEST:
                waiting.append((distance + steps, each))
        waiting.sort(key=lambda each: each[0])


def _first(function: ast.FunctionDef) -> int:
    return min([function.lineno, *(each.lineno for each in function.decorator_list)])


@lru_cache(maxsize=256)
def _statements(function: ast.FunctionDef) -> list[ast.stmt]:
    """The statements of a function at any depth, in the order of the text, without docstrings."""
    return list(statements(function.body))


def _wholes(file: KernelFile, function: ast.FunctionDef, several: list[ast.stmt]) -> Iterator[Spot]:
    """Statements, those that hold others as their heads; none that only hints at a value."""
    for statement in several:
        match statement:
            case ast.For(iter=head) | ast.If(test=head) | ast.While(test=head):
                yield Spot(file, function, statement, head)
            # Another value in `x = tl.multiple_of(x, ...)` would hide what x was computed to be.
            case ast.Assign(value=ast.Call() as call) if called(call) in HINTS:
                continue
            case _ if not blocks(statement):
                yield Spot(file, function, statement, statement)


def _nearby(spot: Spot) -> Iterator[tuple[int, Spot]]:
    """What flows into a spot, and how many steps it is away."""
    file, function, statement = spot.file, spot.function, spot.statement
    names = spot.reads
    if isinstance(statement, ast.AugAssign):
        names = names.union(spot.targets)
    making = [each for each in _statements(function) if each is not statement and names & _bound(each)]
    before = [each for each in making if each.lineno < statement.lineno]
    flows = [*before[::-1], *making[len(before) :]]
    for above in file.above(statement):
        if above is function:
            break
        flows.append(above)  # type: ignore[arg-type]
    for each in _wholes(file, function, flows):
        yield 1, each
    for each in _passed(spot):
        yield _LAUNCH, each
    for helper in file.functions:
        if helper is not function and any(isinstance(call.func, ast.Name) for call in spot.calls(helper.name)):
            for each in _wholes(file, helper, _statements(helper)[::-1]):
                yield 1, each


def _bound(statement: ast.stmt) -> set[str]:
    if isinstance(statement, ast.For):
        return set(bound_in([statement.target]))
    return set() if blocks(statement) else set(bound_in([statement]))


def _hosts_of(file: KernelFile, name: str) -> Iterator[tuple[ast.Call, ast.FunctionDef]]:
    """The calls of a function by its name, each with the function that it stands in."""
    for call in calls_of(file, name):
        for above in file.above(call):
            if isinstance(above, ast.FunctionDef):
                if above.name != name:
                    yield call, above
                break


def _passed(spot: Spot) -> Iterator[Spot]:
    """What callers pass for the parameters that are read here; all that is starred, where something is."""
    for call, host in _hosts_of(spot.file, spot.function.name):
        passed: list[ast.AST] = [each for each in call.args if isinstance(each, ast.Starred)]
        if not passed:
            given = arguments_of(call, spot.function)
            passed = [given[name] for name in parameters(spot.function) if name in spot.reads and name in given]
        for argument in passed:
            yield Spot(spot.file, host, spot.file.statement(call), argument)


def _grids(file: KernelFile) -> Iterator[Spot]:
    for kernel in file.functions:
        for call, host in _hosts_of(file, kernel.name):
            if isinstance(call.func, ast.Subscript):
                yield Spot(file, host, file.statement(call), call.func.slice)
