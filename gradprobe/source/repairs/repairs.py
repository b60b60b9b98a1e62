"""Repairs: one file of kernels, and how candidate edits of it are written."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache

from ..kernel_file import KernelFile, called
from ..operators import OPERATORS
from ..operators.addresses import parameters, stride_of
from ..text import Edit
from .spots import Spot

Undone = Iterator[tuple[float, tuple[Edit, ...]]]
"""(rank, edits): the least rank is tried first."""
# What no edit that helps does again, and what seldom helps.
_NEVER = ("rounded-early", "zeros-not-written", "wide-offset-dropped", "barrier-dropped")
_SELDOM = ("last-tile-lost", "range-cut", "sum-overwritten", "atomic-stored", "transpose-dropped")
# Faults that drop something are undone where something was added, which happens less often.
_SWAPPING = ("own-strides-swapped", "divisions-mixed-up", "bound-off-by-one", "other-base")
_DROPPING = ("term-dropped", "operand-dropped", "guard-dropped", "mask-dropped", "factor-dropped", "subtrahend-changed")
STORES = ("store", "atomic_add")
# What masks are called.
MASK = re.compile(r"mask|valid|bound", re.IGNORECASE)


@dataclass(frozen=True, eq=False)
class Repairs:
    """The candidate edits of one file."""

    file: KernelFile

    def nodes(self, spot: Spot) -> list[ast.AST]:
        return _nodes(spot)

    def replaced(self, node: ast.AST, text: str) -> tuple[Edit, ...]:
        return (self.file.replaced(node, text),)

    def bracketed(self, node: ast.expr, text: str) -> tuple[Edit, ...]:
        """The same, in brackets where an operator may stand beside it."""
        above = next(self.file.above(node))
        is_alone = isinstance(above, (ast.keyword, ast.Assign, ast.AugAssign)) or (
            isinstance(above, ast.Call) and node in above.args
        )
        return self.replaced(node, text if is_alone else f"({text})")

    def multiplied(self, node: ast.expr, factor: str) -> tuple[Edit, ...]:
        """A node times a factor; in its brackets, where it has some."""
        above = next(self.file.above(node))
        text = f"{self.bracketed_text(node)} * {factor}"
        is_inside = isinstance(above, ast.Attribute) and isinstance(node, (ast.Name, ast.Call))
        start, end = self.file.span(node)
        is_inside = is_inside and not (self.file.text[start - 1] == "(" and self.file.text[end] == ")")
        return self.replaced(node, f"({text})" if is_inside else text)

    def bracketed_text(self, node: ast.AST) -> str:
        """A node as it may stand beside any operator."""
        words = self.file.text_of(node)
        plain = (ast.Name, ast.Constant, ast.Attribute, ast.Call, ast.Subscript)
        return words if isinstance(node, plain) else f"({words})"

    def side(self, whole: ast.BinOp, side: ast.expr) -> str:
        """An operand in the place of its operation: one that stands there without brackets needs none here either."""
        (start, end), (first, last) = self.file.span(whole), self.file.span(side)
        return self.file.text_of(side) if start == first or end == last else self.bracketed_text(side)

    @cached_property
    def planted(self) -> dict[ast.stmt, list[tuple[float, tuple[Edit, ...]]]]:
        """The changes of mutate's operators, by statement: many undo themselves, such as `<` for `<=`."""
        found: dict[ast.stmt, list[tuple[float, tuple[Edit, ...]]]] = {}
        for name, operator in ((each, of) for each, of in OPERATORS.items() if each not in _NEVER):
            for change in operator(self.file):
                if any(isinstance(each, ast.FunctionDef) for each in self.file.above(change.node)):
                    rank = 2.5 if name in _DROPPING else 2.0 if name in _SELDOM else 0.7 if name in _SWAPPING else 1.0
                    found.setdefault(self.file.statement(change.node), []).append((rank, change.edits))
        return found

    @cached_property
    def conditions(self) -> list[str]:
        """The terms of every mask in the kernels, each once."""
        nodes = [node for function in self.file.functions for node in ast.walk(function)]
        compared = [node for node in nodes if isinstance(node, ast.Compare) and any(map(is_position, ast.walk(node)))]
        return list(dict.fromkeys(self.file.text_of(node) for node in compared))


@lru_cache(maxsize=4)
def _nodes(spot: Spot) -> list[ast.AST]:
    return [node for root in spot.roots for node in ast.walk(root)]


def is_position(node: ast.AST) -> bool:
    return isinstance(node, ast.Subscript) or (isinstance(node, ast.Name) and node.id.startswith(("off", "o_", "m_")))


def value_of(by: Repairs, spot: Spot) -> ast.expr | None:
    """What a statement assigns or stores."""
    statement = spot.statement
    if spot.roots != (statement,):
        return None
    if isinstance(statement, (ast.Assign, ast.AugAssign, ast.Return)):
        return None if isinstance(statement.value, ast.Tuple) else statement.value
    is_call = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)
    return _stored(by.file, statement.value) if is_call else None  # type: ignore[attr-defined]


def _stored(file: KernelFile, call: ast.Call) -> ast.expr | None:
    """The value that a call stores, itself or in a helper that it is passed to."""
    if called(call) in STORES:
        return call.args[1] if len(call.args) > 1 else None
    for helper in (each for each in file.kernels if each.name == called(call)):
        passed = dict(zip(parameters(helper), call.args, strict=False))
        inside = [node for node in ast.walk(helper) if isinstance(node, ast.Call) and called(node) in STORES]
        values = [node for each in inside for value in each.args[1:2] for node in ast.walk(value)]
        return next((passed[node.id] for node in values if isinstance(node, ast.Name) and node.id in passed), None)
    return None


def has_strides(node: ast.AST) -> bool:
    """Whether strides stand in a statement or a part of it."""
    return any(stride_of(each.id) for each in ast.walk(node) if isinstance(each, ast.Name))
