"""Where in a function a variable has the value that a tap is after, and whether an index tells loop turns apart."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from ...source.triton_source import Function, blocks, bound_before, bound_in, heads
from .tap import Tap

LOOPS = (ast.For, ast.While)


def carries(loop: ast.stmt, variable: str) -> bool:
    """Whether what a variable holds behind a loop grew from what it held before, as an accumulator's value does."""
    return variable in _after(loop, frozenset({variable}))


def _after(statement: ast.stmt, derived: frozenset[str]) -> frozenset[str]:
    """The names that hold something derived behind a statement, of those that did before it."""
    if isinstance(statement, ast.If):
        return _through(statement.body, derived) | _through(statement.orelse, derived)
    if blocks(statement):
        for block in blocks(statement):
            derived = _through(block, derived)
        return derived
    if not isinstance(statement, (ast.Assign, ast.AnnAssign, ast.AugAssign)) or statement.value is None:
        return derived
    bound = frozenset(bound_in([statement]))
    read = {node.id for node in ast.walk(statement.value) if isinstance(node, ast.Name)}
    read |= bound if isinstance(statement, ast.AugAssign) else set()
    return derived | bound if read & derived else derived - bound


def _through(block: Sequence[ast.stmt], derived: frozenset[str]) -> frozenset[str]:
    for statement in block:
        derived = _after(statement, derived)
    return derived


def always_assigns(statement: ast.stmt, variable: str) -> bool:
    """Whether a statement assigns a variable on every way through it; of loops that is not known."""
    if not isinstance(statement, ast.If):
        return not blocks(statement) and variable in bound_in([statement])
    branches = (statement.body, statement.orelse)
    return all(any(always_assigns(inner, variable) for inner in branch) for branch in branches)


def staleness(function: Function, statement: ast.stmt, variable: str, index: frozenset[str]) -> str:
    """Why an index behind a statement may still be that of another tile, in words; "" where it is the tile's own.

    In every loop around the statement some variable of the index must change, and each that changes must do so in every
    turn. A variable that is set before the loop, or in a branch of it, may still belong to an earlier tile.
    """
    way = {statement, *function.source.above(statement)}
    loops = [node for node in ast.walk(function.tree) if isinstance(node, LOOPS) and node in way]
    for loop in (each for each in loops if each is not statement):
        changing = sorted(index & set(bound_in([loop])))
        late = [name for name in changing if not _in_every_turn(loop, way, name)]
        if not changing and not carries(loop, variable):
            where = f"the loop in line {loop.lineno}"
            return f"{where} computes it anew in every turn, and nothing in the index changes there"
        if late:
            return f"the loop in line {loop.lineno} changes {late[0]!r} in some of its turns only"
    return ""


def _in_every_turn(outer: ast.stmt, way: set[ast.AST], name: str) -> bool:
    """Whether a loop gives a name a value in every turn that goes all of a way down into it."""
    if name in bound_in(heads(outer)):
        return True
    block = next((block for block in blocks(outer) if not way.isdisjoint(block)), [])
    return any(always_assigns(each, name) or (each in way and _in_every_turn(each, way, name)) for each in block)


@dataclass(frozen=True)
class TapPlace:
    """Right behind a statement."""

    statement: ast.stmt
    visible: frozenset[str]
    """The names that have a value there."""
    stale: str
    """Why the index may be that of another tile there, in words; "" where it is not."""
    is_transposed: bool | None = None
    """Whether the kernel holds the tile with its axes in the other order than the index; None if that is unclear."""


def places(function: Function, tap: Tap) -> list[TapPlace]:
    """Every place where a tap stores: where the variable has its last value for one setting of the index.

    In each block that is behind the last assignment, and behind what the index still lacks there. A branch, or a loop
    that adds to the variable, counts as one assignment where it changes no variable of the index, since all it computes
    belongs to one tile; others are looked into. Empty where nothing assigns the variable.
    """
    found = _in_block(function, function.tree.body, tap.variable, tap.index_names)
    index = tap.index_names & function.variables
    stale = (staleness(function, statement, tap.variable, index) for statement in found)
    return [TapPlace(at, _visible_behind(function, at), why) for at, why in zip(found, stale, strict=True)]


def _in_block(function: Function, block: list[ast.stmt], variable: str, index: frozenset[str]) -> list[ast.stmt]:
    found: list[ast.stmt] = []
    # What the next assignment puts another value in the place of, unless the index changes before.
    latest: list[ast.stmt] = []
    for statement in block:
        bound = set(bound_in([statement]))
        if latest and index & bound:
            has_values = index & function.variables <= _visible_behind(function, latest[-1])
            found += latest if has_values or blocks(statement) else []
            latest = [] if has_values or blocks(statement) else [statement]
        if variable in bound and _is_one_assignment(function, statement, variable, index):
            latest = [statement]
        elif variable in bound:
            inside = [place for inner in blocks(statement) for place in _in_block(function, inner, variable, index)]
            (found if index & bound else latest).extend(inside)
    return [*found, *latest]


def _visible_behind(function: Function, statement: ast.stmt) -> frozenset[str]:
    return frozenset(bound_before(function, statement) | set(bound_in([statement])))


def _is_one_assignment(function: Function, statement: ast.stmt, variable: str, index: frozenset[str]) -> bool:
    if not blocks(statement):
        return True
    leaves = any(isinstance(node, (ast.Return, ast.Break, ast.Continue)) for node in ast.walk(statement))
    # Nothing can be written behind an `elif` alone.
    is_elif = isinstance(statement, ast.If) and function.source.text_of(statement).startswith("elif")
    if leaves or is_elif or index & set(bound_in([statement])):
        return False
    if isinstance(statement, LOOPS) and not carries(statement, variable):
        return False
    return variable in bound_before(function, statement) or always_assigns(statement, variable)
