"""Where in a function a variable has the value that a tap is after."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from .functions import Function, blocks, bound_before, bound_in
from .loops import LOOPS, always_assigns, carries, staleness
from .words import Tap


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
    index = tap.index_names
    return [
        TapPlace(
            statement,
            _visible_behind(function, statement),
            staleness(function, statement, tap.variable, index & function.variables),
        )
        for statement in _in_block(function, function.tree.body, tap.variable, index)
    ]


def _in_block(function: Function, block: list[ast.stmt], variable: str, index: frozenset[str]) -> list[ast.stmt]:
    found: list[ast.stmt] = []
    # What the next assignment puts another value in the place of, unless the index changes before.
    latest: list[ast.stmt] = []
    for statement in block:
        bound = set(bound_in([statement]))
        if latest and index & bound:
            has_values = index & function.variables <= _visible_behind(function, latest[-1])
            if has_values or blocks(statement):
                found, latest = [*found, *latest], []
            else:
                latest = [statement]
        if variable not in bound:
            continue
        if _is_one_assignment(function, statement, variable, index):
            latest = [statement]
            continue
        inside = [place for inner in blocks(statement) for place in _in_block(function, inner, variable, index)]
        if index & bound:
            found += inside
        else:
            latest += inside
    return [*found, *latest]


def _visible_behind(function: Function, statement: ast.stmt) -> frozenset[str]:
    return frozenset(bound_before(function, statement) | set(bound_in([statement])))


def _is_one_assignment(function: Function, statement: ast.stmt, variable: str, index: frozenset[str]) -> bool:
    if not blocks(statement):
        return True
    leaves = any(isinstance(node, (ast.Return, ast.Break, ast.Continue)) for node in ast.walk(statement))
    # Nothing can be written behind an `elif` alone.
    is_elif = isinstance(statement, ast.If) and function.source.words(statement).startswith("elif")
    if leaves or is_elif or index & set(bound_in([statement])):
        return False
    if isinstance(statement, LOOPS) and not carries(statement, variable):
        return False
    return variable in bound_before(function, statement) or always_assigns(statement, variable)
