"""Spots: the statement at fault and those that flow into it, the nearest first, down to the arguments of launches."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cached_property, lru_cache

from ..kernel_file import KernelFile, arguments_of, called, calls_in, calls_of, inside, parameters
from ..text import Edit
from ..triton_source import HINTS, blocks, bound_in

# How far back statements are followed, and how much further an argument of a launch is than a statement beside it.
_DEEPEST, _LAUNCH = 6, 2
STORES = ("store", "atomic_add")
Edits = tuple[Edit, ...]
Undone = Iterator[tuple[float, Edits]]
"""(rank, edits): the least rank is tried first."""


class GridRole(Enum):
    """Whether a fault may be how many programs there are."""

    FAR = "no"
    NEAR = "maybe"
    FIRST = "likely"


def place_of(node: ast.stmt | ast.expr) -> tuple[int, int]:
    """Where a node begins in the text, to sort by."""
    return node.lineno, node.col_offset


@dataclass(frozen=True)
class Spot:
    """A statement, or an argument of a call, in which the fault may lie."""

    file: KernelFile
    function: ast.FunctionDef
    statement: ast.stmt
    roots: tuple[ast.AST, ...]
    """What of it may be changed: all of a simple statement, the head of one that holds others, one argument."""

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return [node for root in self.roots for node in ast.walk(root)]

    @cached_property
    def names(self) -> list[ast.Name]:
        """The names that are read here, in the order of the text."""
        read = [node for node in self.nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)]
        return sorted(read, key=place_of)

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
        return self.roots == (self.statement,)

    @property
    def is_on_device(self) -> bool:
        return self.function in self.file.kernels

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

    def put(self, rank: float, node: ast.AST, text: str) -> tuple[float, Edits]:
        """Another text in a node's place."""
        return rank, (self.file.replaced(node, text),)

    def put_operation(self, rank: float, node: ast.expr, text: str) -> tuple[float, Edits]:
        """The same of an operation, in brackets where an operator may stand beside it."""
        above = next(self.file.above(node))
        is_argument = isinstance(above, ast.Call) and node in above.args
        is_alone = is_argument or isinstance(above, (ast.keyword, ast.Assign, ast.AugAssign))
        return self.put(rank, node, text if is_alone else f"({text})")

    def put_behind(self, rank: float, statement: ast.stmt, text: str) -> tuple[float, Edits]:
        """One more statement, behind another one."""
        end = self.file.span(statement)[1]
        return rank, (Edit(end, end, f"\n{' ' * statement.col_offset}{text}"),)


@lru_cache(maxsize=256)
def _unread(function: ast.FunctionDef) -> frozenset[str]:
    read = {name.id for name in inside(function, ast.Name) if isinstance(name.ctx, ast.Load)}
    return frozenset({*parameters(function), *bound_in(function.body)} - read)


def _stored(file: KernelFile, call: ast.Call) -> ast.expr | None:
    """The value that a call stores, itself or in a helper that it is passed to."""
    if called(call) in STORES:
        return call.args[1] if len(call.args) > 1 else None
    for helper in (each for each in file.kernels if each.name == called(call)):
        passed = dict(zip(parameters(helper), call.args, strict=False))
        for store in calls_in(helper, *STORES):
            names = [name.id for value in store.args[1:2] for name in inside(value, ast.Name)]
            return next((passed[name] for name in names if name in passed), None)
    return None


def spots_of(file: KernelFile, line: int, grid: GridRole = GridRole.FAR) -> Iterator[tuple[int, Spot]]:
    """Where the fault of a line may lie, nearest first; of the line of a `def`, its statements from the last one up.

    Args:
        grid: where the grids of the launches stand of the kernel, or of what is allocated at the line.

    Yields:
        How many steps the values take from there to the line, and the spot.
    """
    found = _statement_at(file, line)
    if found is None:
        return
    function, statement = found
    own = [statement] if statement is not function else _statements(function)[::-1]
    further = 2 * _LAUNCH if grid == GridRole.FIRST else 0
    grids = () if grid == GridRole.FAR else _grids(file, function, statement)
    waiting = [*((0, each) for each in grids), *((further, _whole(file, function, each)) for each in own)]
    seen: set[ast.AST] = set()
    while waiting:
        distance, spot = waiting.pop(0)
        if spot.roots and spot.roots[0] not in seen:
            seen.add(spot.roots[0])
            yield distance, spot
            nearby = [(distance + steps, each) for steps, each in _nearby(spot) if distance + steps <= _DEEPEST]
            waiting = sorted([*waiting, *nearby], key=lambda each: each[0])


def _whole(file: KernelFile, function: ast.FunctionDef, statement: ast.stmt) -> Spot:
    return Spot(file, function, statement, _roots(statement))


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
    match statement:
        case ast.For(iter=head) | ast.If(test=head) | ast.While(test=head):
            return (head,)
        case ast.Assign([ast.Name(name)], ast.Call(ast.Attribute(attr=hint), [ast.Name(of), *_])):
            # Another value in `x = tl.multiple_of(x, ...)` would hide what x was computed to be.
            return () if hint in HINTS and name == of else (statement,)
    return () if blocks(statement) else (statement,)


def _nearby(spot: Spot) -> Iterator[tuple[int, Spot]]:
    """What flows into a spot, and how many steps it is away."""
    file, function, statement = spot.file, spot.function, spot.statement
    names = {*spot.reads, *(spot.targets if isinstance(statement, ast.AugAssign) else ())}
    making = [each for each in _statements(function) if each is not statement and names & _bound(each)]
    before = [each for each in making if each.lineno < statement.lineno]
    yield from ((1, _whole(file, function, each)) for each in before[::-1])
    yield from ((1, _whole(file, function, each)) for each in making if each.lineno > statement.lineno)
    for above in file.above(statement):  # the heads of loops and branches around it
        if above is function:
            break
        if isinstance(above, ast.stmt):
            yield 1, _whole(file, function, above)
    yield from ((_LAUNCH, each) for each in _passed(spot))
    helpers = {node.func.id for node in spot.nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    for helper in file.functions:
        if helper.name in helpers and helper is not function:
            yield from ((1, _whole(file, helper, each)) for each in reversed(_statements(helper)))


def _bound(statement: ast.stmt) -> set[str]:
    if isinstance(statement, ast.For):
        return set(bound_in([statement.target]))
    return set() if blocks(statement) else set(bound_in([statement]))


def _host_of(file: KernelFile, call: ast.Call) -> ast.FunctionDef | None:
    return next((each for each in file.above(call) if isinstance(each, ast.FunctionDef)), None)


def _passed(spot: Spot) -> Iterator[Spot]:
    """What callers pass for the parameters that are read here."""
    for call in calls_of(spot.file, spot.function.name):
        host = _host_of(spot.file, call)
        if host is None or host is spot.function:
            continue
        given = arguments_of(call, spot.function)
        starred: list[ast.expr | ast.keyword] = [each for each in call.args if isinstance(each, ast.Starred)]
        for argument in starred or [given[name] for name in parameters(spot.function) if name in spot.reads & {*given}]:
            yield Spot(spot.file, host, spot.file.statement(call), (argument,))


def _grids(file: KernelFile, function: ast.FunctionDef, statement: ast.stmt) -> Iterator[Spot]:
    """Of the launches of a kernel; in host code, of those that are given what a statement makes."""
    made = set(bound_in([statement])) if function not in file.kernels else set()
    launches = [call for kernel in file.kernels for call in calls_of(file, kernel.name) if made & _given(call)]
    for call in [*calls_of(file, function.name), *launches]:
        host = _host_of(file, call)
        if host is not None and isinstance(call.func, ast.Subscript):
            yield Spot(file, host, file.statement(call), (call.func.slice,))


def _given(call: ast.Call) -> set[str]:
    given = (*call.args, *(word.value for word in call.keywords))
    return {each.id for each in given if isinstance(each, ast.Name)}
