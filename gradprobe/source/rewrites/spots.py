"""Spots: the statement at fault and those that flow into it, the nearest first, down to the arguments of launches."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache

from ..kernel_file import KernelFile, arguments_of, called, calls_in, calls_of, inside, names_in, parameters
from ..reach import head_of, statements
from ..text import Edit
from ..triton_source import HINTS, blocks, bound_in
from .patterns import replaced

# How far back statements are followed, and how much further an argument of a launch is than a statement beside it.
_DEEPEST, _LAUNCH = 6, 2
STORES = ("store", "atomic_add")
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
        """The names that its function may read: its parameters, what it assigns, and what the module assigns."""
        module = [each for each in self.file.tree.body if isinstance(each, (ast.Assign, ast.AnnAssign))]
        return list(dict.fromkeys([*parameters(self.function), *bound_in([*self.function.body, *module])]))

    @property
    def unread(self) -> frozenset[str]:
        """The names of its kernel that nothing reads: whoever dropped a term, a factor or a mask left its name."""
        return _unread(self.function) if self.is_on_device else frozenset()

    @property
    def value(self) -> ast.expr | None:
        """What a whole statement assigns, returns or stores, itself or in a helper that it passes it to."""
        if not self.is_whole:
            return None
        match self.statement:
            case ast.Assign(value=value) | ast.AugAssign(value=value) | ast.Return(value=value):
                return None if isinstance(value, ast.Tuple) else value
            case ast.Expr(ast.Call() as call):
                return _stored(self.file, call)
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


def _stored(file: KernelFile, call: ast.Call) -> ast.expr | None:
    """The value that a call stores, itself or in a helper that it is passed to."""
    if called(call) in STORES:
        return call.args[1] if len(call.args) > 1 else None
    for helper in file.kernels:
        for store in calls_in(helper, *STORES) if helper.name == called(call) else ():
            passed = dict(zip(parameters(helper), call.args, strict=False))
            names = [name.id for value in store.args[1:2] for name in inside(value, ast.Name)]
            return next((passed[name] for name in names if name in passed), None)
    return None


def spots_of(file: KernelFile, line: int, *, grid: bool = False) -> Iterator[tuple[int, Spot]]:
    """Where the fault of a line may lie, nearest first; of the line of a `def`, its statements from the last one up.

    Args:
        grid: whether also in the grids of the kernel's launches, or of what is allocated at the line.

    Yields:
        How many steps the values take from there to the line, and the spot.
    """
    around = [each for each in file.functions if _first(each) <= line <= (each.end_lineno or each.lineno)]
    if not around:
        return
    function = max(around, key=_first)
    inner = [each for each in _statements(function) if line in head_of(each)]
    own = [max(inner, key=lambda each: each.lineno)] if inner else _statements(function)[::-1]
    waiting = [(0, each) for each in _grids(file, function, own[0])] if grid else []
    waiting += [(0, each) for each in _wholes(file, function, own)]
    seen: set[ast.AST] = set()
    while waiting:
        distance, spot = waiting.pop(0)
        if spot.root not in seen:
            seen.add(spot.root)
            yield distance, spot
            near = [(distance + steps, each) for steps, each in _nearby(spot)]
            waiting += [each for each in near if each[0] <= _DEEPEST]
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
            case ast.Assign([ast.Name(name)], ast.Call(ast.Attribute(attr=hint), [ast.Name(of), *_])) if name == of:
                # Another value in `x = tl.multiple_of(x, ...)` would hide what x was computed to be.
                if hint not in HINTS:
                    yield Spot(file, function, statement, statement)
            case _ if not blocks(statement):
                yield Spot(file, function, statement, statement)


def _nearby(spot: Spot) -> Iterator[tuple[int, Spot]]:
    """What flows into a spot, and how many steps it is away."""
    file, function, statement = spot.file, spot.function, spot.statement
    names = {*spot.reads, *(spot.targets if isinstance(statement, ast.AugAssign) else ())}
    making = [each for each in _statements(function) if each is not statement and names & _bound(each)]
    before = [each for each in making if each.lineno < statement.lineno]
    heads = [each for each in file.above(statement) if isinstance(each, ast.stmt)]
    heads = heads[: heads.index(function)] if function in heads else []
    flows = [*before[::-1], *making[len(before) :], *heads]
    yield from ((1, each) for each in _wholes(file, function, flows))
    yield from ((_LAUNCH, each) for each in _passed(spot))
    for helper in file.functions:
        if helper is not function and any(isinstance(node.func, ast.Name) for node in spot.calls(helper.name)):
            yield from ((1, each) for each in _wholes(file, helper, _statements(helper)[::-1]))


def _bound(statement: ast.stmt) -> set[str]:
    if isinstance(statement, ast.For):
        return set(bound_in([statement.target]))
    return set() if blocks(statement) else set(bound_in([statement]))


def _hosts_of(file: KernelFile, name: str) -> Iterator[tuple[ast.Call, ast.FunctionDef]]:
    """The calls of a function by its name, each with the function that it stands in."""
    for call in calls_of(file, name):
        host = next((each for each in file.above(call) if isinstance(each, ast.FunctionDef)), None)
        if host is not None and host.name != name:
            yield call, host


def _passed(spot: Spot) -> Iterator[Spot]:
    """What callers pass for the parameters that are read here; all that is starred, where something is."""
    for call, host in _hosts_of(spot.file, spot.function.name):
        given = arguments_of(call, spot.function)
        passed: list[ast.AST] = [each for each in call.args if isinstance(each, ast.Starred)]
        passed = passed or [given[name] for name in parameters(spot.function) if name in spot.reads & {*given}]
        for argument in passed:
            yield Spot(spot.file, host, spot.file.statement(call), argument)


def _grids(file: KernelFile, function: ast.FunctionDef, statement: ast.stmt) -> Iterator[Spot]:
    """Of the launches of a kernel; in host code, of those that are given what a statement makes."""
    made = set(bound_in([statement])) if function not in file.kernels else set()
    for kernel in file.functions:
        for call, host in _hosts_of(file, kernel.name):
            given = {name for value in (*call.args, *call.keywords) for name in names_in(value)}
            if isinstance(call.func, ast.Subscript) and (kernel is function or made & given):
                yield Spot(file, host, file.statement(call), call.func.slice)
