"""Where in a function a variable has the value that a tap is after."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from .functions import Function, blocks, bound_before, bound_in
from .words import Tap


@dataclass(frozen=True)
class Place:
    """Right behind a statement."""

    statement: ast.stmt
    visible: frozenset[str]
    """The names that have a value there."""
    is_transposed: bool | None = None
    """Whether the kernel holds the tile with its axes in the other order than the index; None if that is unclear."""


def places(function: Function, tap: Tap) -> list[Place]:
    """Every place where a tap stores: where the variable has its last value for one setting of the index.

    In each block that is behind the last assignment, and behind what the index still lacks there. A loop or a branch
    that assigns no variable of the index counts as one assignment, since all it computes belongs to one tile; one that
    does is looked into. Empty where nothing assigns the variable.
    """
    return [
        Place(statement, _visible_behind(function, statement))
        for statement in _in_block(function, function.tree.body, tap.variable, tap.index_names)
    ]


def _in_block(function: Function, block: list[ast.stmt], variable: str, index: frozenset[str]) -> list[ast.stmt]:
    found: list[ast.stmt] = []
    last: ast.stmt | None = None
    for statement in block:
        bound = set(bound_in([statement]))
        if last is not None and index & bound:
            if _has_values(function, last, index) or blocks(statement):
                # From here on the index means another tile.
                found, last = [*found, last], None
            else:
                last = statement
        if variable not in bound:
            continue
        if _is_one_assignment(function, statement, variable, index):
            last = statement
        else:
            for inner in blocks(statement):
                found += _in_block(function, inner, variable, index)
    return [*found, last] if last is not None else found


def _visible_behind(function: Function, statement: ast.stmt) -> frozenset[str]:
    return frozenset(bound_before(function, statement) | set(bound_in([statement])))


def _has_values(function: Function, statement: ast.stmt, names: frozenset[str]) -> bool:
    """Whether those of the names that are variables of the function have values behind a statement."""
    return names & function.variables <= _visible_behind(function, statement)


def _is_one_assignment(function: Function, statement: ast.stmt, variable: str, index: frozenset[str]) -> bool:
    if not blocks(statement):
        return True
    leaves = any(isinstance(node, (ast.Return, ast.Break, ast.Continue)) for node in ast.walk(statement))
    if leaves or _is_elif(function, statement) or index & set(bound_in([statement])):
        return False
    return variable in bound_before(function, statement) or _always_assigns(statement, variable)


def _always_assigns(statement: ast.stmt, variable: str) -> bool:
    if not isinstance(statement, ast.If):
        return not blocks(statement) and variable in bound_in([statement])
    branches = (statement.body, statement.orelse)
    return all(any(_always_assigns(inner, variable) for inner in branch) for branch in branches)


def _is_elif(function: Function, statement: ast.stmt) -> bool:
    """Nothing can be written behind an `elif` alone."""
    text = function.lines[statement.lineno - 1][statement.col_offset :]
    return isinstance(statement, ast.If) and text.startswith(b"elif")
