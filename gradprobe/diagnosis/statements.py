"""Statements around a line of a kernel: what defines a mask, moves a pointer, or says how far a loop goes."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..frontends.cuda.cuda_syntax import leaves, node_text, nodes, parse, without_comments

if TYPE_CHECKING:
    from tree_sitter import Node

# The note of lines that stand beside a sum: each may be where it leaves something out.
LOOP = "the loop"
# Statements of a helper that makes a mask up to which all are told.
_FEW = 8
# How many steps back a grid is followed in one function.
_STEPS = 3
_Assignment = ast.Assign | ast.AugAssign


class _Line:
    """A line of a file, and the innermost function around it; nothing where the file cannot be read."""

    def __init__(self, file: str, line: int) -> None:
        self.file, self.number, self.tree = file, line, _tree(file)
        around = [each for each in _all(self.tree, ast.FunctionDef) if self._is_in(each)]
        self.function: ast.AST = max(around, key=lambda each: each.lineno, default=self.tree)
        self.nodes = [each for each in _all(self.function, ast.stmt | ast.expr) if self._is_in(each)]
        self.names = {each.id for each in self.nodes if isinstance(each, ast.Name)}
        self.calls = [each for each in self.nodes if isinstance(each, ast.Call)]
        self.targets = {name for each in self.nodes if isinstance(each, _Assignment) for name in _targets(each)}

    def _is_in(self, node: ast.stmt | ast.expr) -> bool:
        return node.lineno <= self.number <= (node.end_lineno or 0)

    def assigned(self, names: set[str], until: int | None = None) -> list[_Assignment]:
        """The assignments to names up to a line, itself if none is given; the last first."""
        last = self.number if until is None else until
        found = [each for each in _all(self.function, _Assignment) if each.lineno <= last and names & _targets(each)]
        return sorted(found, key=lambda each: -each.lineno)

    def behind(self, names: set[str]) -> list[_Assignment]:
        """The assignments that some names get their values by, a few steps back, but for shapes of tensors."""
        found: dict[_Assignment, None] = {}
        for _ in range(_STEPS):
            made = self.assigned(names)
            found |= dict.fromkeys(made)
            names = _names(*(each.value for each in made))
        return [each for each in found if not _is_shape(each.value)]


def masks(file: str, line: int, *, of_accesses: bool = True) -> Iterator[int]:
    """The lines that make the condition of the `where` of a line, or the `mask=` of its access, the last first."""
    here = _Line(file, line)
    tests = [call.args[0] for call in here.calls if _name(call.func) == "where" and call.args]
    tests += [word.value for call in here.calls for word in call.keywords if word.arg == "mask" and of_accesses]
    for made in (each for test in tests for each in here.assigned(_names(test))):
        yield made.lineno
        for call in _all(made.value, ast.Call):
            yield from _body(here.tree, _name(call.func))
        terms = here.assigned(_names(made.value), made.lineno - 1)
        yield from (term.lineno for term in terms if isinstance(term.value, (ast.Compare, ast.BoolOp)))


def _body(tree: ast.AST, name: str) -> Iterator[int]:
    """The statements of a short function, the last first."""
    for function in (each for each in _all(tree, ast.FunctionDef) if each.name == name):
        statements = [each for each in function.body if isinstance(each, (ast.Assign, ast.AugAssign, ast.Return))]
        yield from (each.lineno for each in reversed(statements) if len(statements) <= _FEW)


def address(file: str, line: int) -> Iterator[int]:
    """The lines that make the address of a line's access: those that move its pointer, and the indices they use."""
    if not file.endswith(".py"):
        yield from _cuda_address(file, line)
        return
    here = _Line(file, line)
    made = [each for each in here.assigned(here.names) if any("stride" in name for name in _names(each))]
    used = here.assigned(_names(*made))
    indices = [each for each in used if _all(each, ast.FloorDiv | ast.Mod)]
    yield from dict.fromkeys(each.lineno for each in (*made, *indices) if each.lineno != line)


def aliases(file: str, line: int) -> Iterator[int]:
    """The lines that give what a line uses its value from another name alone, such as a pointer that is not moved."""
    here = _Line(file, line)
    used = here.assigned(here.names)
    yield from (each.lineno for each in used if isinstance(each.value, ast.Name) and each.lineno != line)


def grids(file: str, kernel: str) -> Iterator[int]:
    """The lines of a kernel's launches in its file, and those that make what their grids use."""
    for call in _launches(_tree(file)):
        if _callee(call) == kernel:
            yield call.lineno
            yield from (each.lineno for each in _Line(file, call.lineno).behind(_names(call.func)))


def launches_with(file: str, line: int) -> Iterator[int]:
    """The lines of the launches, in the same function, that are given what a line of host code assigns."""
    here = _Line(file, line)
    launches = [call for call in _launches(here.function) if call.lineno > line]
    yield from (call.lineno for call in launches if here.targets & _names(*call.args))


def held_by(file: str, line: int) -> str:
    """The name of the innermost Python function that holds a line; "" where none does."""
    return getattr(_Line(file, line).function, "name", "")


def loops(file: str, line: int) -> list[int]:
    """The lines of the loops that a line stands in, or that make what it uses; the last first."""
    if not file.endswith(".py"):
        around = nodes(_cuda(file), "for_statement", "while_statement", "do_statement")
        return sorted((_lines(each).start for each in around if line in _lines(each)[1:]), reverse=True)
    here = _Line(file, line)
    used = [line, *(each.lineno for each in here.assigned(here.names))]
    every = _all(here.function, ast.For)
    return sorted((x.lineno for x in every if any(x.lineno < at <= (x.end_lineno or 0) for at in used)), reverse=True)


def ends(file: str, line: int) -> Iterator[int]:
    """The lines that make where the innermost loop around a line begins and ends, and the loop's own."""
    here = _Line(file, line)
    around = [each for each in here.nodes if isinstance(each, ast.For) and each.lineno < line]
    for loop in around[-1:]:
        limits = loop.iter.args[:2] if isinstance(loop.iter, ast.Call) else []
        yield from (each.lineno for each in here.assigned(_names(*limits), loop.lineno))
        yield loop.lineno


def _launches(tree: ast.AST) -> list[ast.Call]:
    """`f[grid](...)`."""
    return [call for call in _all(tree, ast.Call) if isinstance(call.func, ast.Subscript)]


def _callee(call: ast.Call) -> str:
    """What is called, or launched: `f[grid](...)`."""
    return _name(call.func.value if isinstance(call.func, ast.Subscript) else call.func)


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


def _all(tree: ast.AST, kind: Any) -> list[Any]:
    """The nodes of some kinds, outer ones before inner ones."""
    return [each for each in _walked(tree) if isinstance(each, kind)]


@functools.lru_cache(maxsize=4096)  # each function of a file is asked for many lines
def _walked(tree: ast.AST) -> list[ast.AST]:
    return [*ast.walk(tree)]


@functools.lru_cache(maxsize=8)
def _tree(file: str) -> ast.AST:
    try:
        return ast.parse(Path(file).read_text(errors="replace")) if file.endswith(".py") else ast.Module([], [])
    except (OSError, SyntaxError, ValueError):
        return ast.Module([], [])


# --- CUDA C++


def _cuda_address(file: str, line: int) -> Iterator[int]:
    """Of CUDA C++: the products that are assigned to what the line uses, and the quotients in those."""
    functions = [node for node in nodes(_cuda(file), "function_definition") if line in _lines(node)]
    before = [one for function in functions[-1:] for one in nodes(function, *_ASSIGNING) if _lines(one).start < line]
    here = [leaf for function in functions[-1:] for leaf in leaves(function) if line in _lines(leaf)]
    made = _of_names(before, here, "*")
    used = _of_names(before, [leaf for one in made for leaf in leaves(one)], "/", "%")
    yield from dict.fromkeys(_lines(one).start for one in (*made, *used))


_ASSIGNING = {"assignment_expression": "left", "init_declarator": "declarator"}


def _of_names(assigning: Iterable[Node], used: Iterable[Node], *operators: str) -> list[Node]:
    """The assignments, the last first, to names that are used, in which such an operator stands."""
    names = {node_text(leaf) for leaf in used if leaf.type == "identifier"}
    found: dict[object, Node] = {}
    for made in assigning:
        name = node_text(made.child_by_field_name(_ASSIGNING[made.type])).lstrip("*& ")
        terms = (child.type for term in nodes(made, "binary_expression") for child in term.children)
        if name in names and any(sign in operators for sign in terms):
            # Of what is declared again the last declaration counts.
            found[name if made.type == "init_declarator" else made.start_byte] = made
    return sorted(found.values(), key=lambda one: -_lines(one).start)


def _lines(node: Node) -> range:
    return range(node.start_point[0] + 1, node.end_point[0] + 2)


@functools.lru_cache(maxsize=8)
def _cuda(file: str) -> Node:
    return parse(without_comments(Path(file).read_text(errors="replace")))
