"""Statements around a line of a kernel: what defines a mask, moves a pointer, or says how far a loop goes."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from typing import Any

from ...source.text import python_file
from ..interface import Statements

# Statements of a helper that makes a mask up to which all are told.
_FEW = 8
# How many steps back a grid is followed in one function.
_STEPS = 3
_Assignment = ast.Assign | ast.AugAssign


class _Line:
    """A line of a file, and the innermost function around it; nothing of a file that cannot be read."""

    def __init__(self, file: str, line: int) -> None:
        self.number, self.tree = line, python_file(file).tree
        around = [each for each in _all(self.tree, ast.FunctionDef) if self._is_in(each)]
        self.function: ast.AST = around[-1] if around else self.tree
        self.nodes = [each for each in _all(self.function, ast.stmt | ast.expr) if self._is_in(each)]
        self.names = {each.id for each in self.nodes if isinstance(each, ast.Name)}

    def _is_in(self, node: ast.stmt | ast.expr) -> bool:
        return node.lineno <= self.number <= (node.end_lineno or 0)

    def assigned(self, names: set[str], until: int | None = None) -> list[_Assignment]:
        """The assignments to names up to a line, itself if none is given; the last first."""
        last = self.number if until is None else until
        found = [each for each in _all(self.function, _Assignment) if each.lineno <= last and names & _targets(each)]
        return sorted(found, key=lambda each: -each.lineno)


class PythonStatements(Statements):
    """The statements of a file of Python, kernels of Triton among them."""

    def masks(self, line: int, *, of_accesses: bool = True) -> Iterator[int]:
        here, names = _Line(self.file, line), set[str]()
        for call in (each for each in here.nodes if isinstance(each, ast.Call)):
            tests = call.args[:1] if _name(call.func) == "where" else []
            tests += [word.value for word in call.keywords if word.arg == "mask" and of_accesses]
            names |= _names(*tests)
        for made in here.assigned(names):
            yield made.lineno
            for call in _all(made.value, ast.Call):
                yield from _body(here.tree, _name(call.func))
            terms = here.assigned(_names(made.value), made.lineno - 1)
            yield from (term.lineno for term in terms if isinstance(term.value, (ast.Compare, ast.BoolOp)))

    def address(self, line: int) -> Iterator[int]:
        here = _Line(self.file, line)
        made = [each for each in here.assigned(here.names) if any("stride" in name for name in _names(each))]
        used = here.assigned(_names(*made))
        indices = [each for each in used if _all(each, ast.FloorDiv | ast.Mod)]
        yield from dict.fromkeys(each.lineno for each in (*made, *indices) if each.lineno != line)

    def aliases(self, line: int) -> Iterator[int]:
        here = _Line(self.file, line)
        used = here.assigned(here.names)
        yield from (each.lineno for each in used if isinstance(each.value, ast.Name) and each.lineno != line)

    def grids(self, kernel: str) -> Iterator[int]:
        for call in _launches(python_file(self.file).tree):
            assert isinstance(call.func, ast.Subscript)
            if _name(call.func.value) != kernel:
                continue
            found, names, here = {call.lineno: None}, _names(call.func), _Line(self.file, call.lineno)
            for _ in range(_STEPS):
                made = here.assigned(names)
                found |= dict.fromkeys(each.lineno for each in made if not _is_shape(each.value))
                names = _names(*(each.value for each in made))
            yield from found

    def launches_with(self, line: int) -> Iterator[int]:
        here = _Line(self.file, line)
        targets = {name for each in here.nodes if isinstance(each, _Assignment) for name in _targets(each)}
        launches = [call for call in _launches(here.function) if call.lineno > line]
        yield from (call.lineno for call in launches if targets & _names(*call.args))

    def function_at(self, line: int) -> str:
        return getattr(_Line(self.file, line).function, "name", "")

    def loops(self, line: int) -> list[int]:
        here = _Line(self.file, line)
        used = {line, *(each.lineno for each in here.assigned(here.names))}
        every = [range(each.lineno + 1, (each.end_lineno or 0) + 1) for each in _all(here.function, ast.For)]
        return sorted((inside.start - 1 for inside in every if used & {*inside}), reverse=True)

    def ends(self, line: int) -> Iterator[int]:
        here = _Line(self.file, line)
        around = [each for each in here.nodes if isinstance(each, ast.For) and each.lineno < line]
        for loop in around[-1:]:
            limits = loop.iter.args[:2] if isinstance(loop.iter, ast.Call) else []
            yield from (each.lineno for each in here.assigned(_names(*limits), loop.lineno))
            yield loop.lineno


def _body(tree: ast.AST, name: str) -> Iterator[int]:
    """The statements of a short function, the last first."""
    for function in (each for each in _all(tree, ast.FunctionDef) if each.name == name):
        statements = [each for each in function.body if isinstance(each, (ast.Assign, ast.AugAssign, ast.Return))]
        yield from (each.lineno for each in reversed(statements) if len(statements) <= _FEW)


def _launches(tree: ast.AST) -> list[ast.Call]:
    """`f[grid](...)`."""
    return [call for call in _all(tree, ast.Call) if isinstance(call.func, ast.Subscript)]


def _is_shape(value: ast.expr) -> bool:
    """Whether it is what a tensor has as it comes: `q.shape`, `q.shape[2]`."""
    inner = value.value if isinstance(value, ast.Subscript) else value
    return isinstance(inner, ast.Attribute) and inner.attr == "shape"


def _names(*trees: ast.AST) -> set[str]:
    return {each.id for tree in trees for each in _all(tree, ast.Name)}


def _targets(node: _Assignment) -> set[str]:
    return _names(*(node.targets if isinstance(node, ast.Assign) else [node.target]))


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


@functools.lru_cache(maxsize=4096)  # each function of a file is asked for many lines
def _all(tree: ast.AST, kind: Any) -> list[Any]:
    """The nodes of some kinds, outer ones before inner ones."""
    return [each for each in ast.walk(tree) if isinstance(each, kind)]
