"""Statements of a kernel's source: what defines a mask, and the loop that a line stands in."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..source.cuda_syntax import leaves, node_text, nodes, parse, without_comments

if TYPE_CHECKING:
    from tree_sitter import Node

# Notes of lines that stand beside a sum: each may be where it leaves something out.
LOOP, RANGE, COUNTED = "the loop", "its range", "counted here"
# Statements of a helper that makes a mask up to which all are told.
_FEW = 8
# How many steps back a range is followed in one function.
_STEPS = 3
_Assignment = ast.Assign | ast.AugAssign


class _Line:
    """A line of a file, and the innermost function around it; nothing where the file cannot be read."""

    def __init__(self, file: str, line: int) -> None:
        self.file, self.number, self.tree = file, line, _tree(file)
        around = [node for node in self._at(self.tree) if isinstance(node, ast.FunctionDef)]
        self.function: ast.AST = max(around, key=lambda node: node.lineno, default=self.tree)
        self.nodes = self._at(self.function)
        self.names = {node.id for node in self.nodes if isinstance(node, ast.Name)}

    def _at(self, tree: ast.AST) -> list[ast.AST]:
        every = (node for node in ast.walk(tree) if isinstance(node, (ast.stmt, ast.expr)))
        return [node for node in every if node.lineno <= self.number <= (node.end_lineno or 0)]

    @property
    def calls(self) -> list[ast.Call]:
        return [node for node in self.nodes if isinstance(node, ast.Call)]

    @property
    def targets(self) -> set[str]:
        """What it assigns."""
        return {name for node in self.nodes if isinstance(node, _Assignment) for name in _targets(node)}

    def assigned(self, names: set[str], until: int | None = None) -> list[_Assignment]:
        """The assignments to names up to a line, itself if none is given; the last first."""
        last = self.number if until is None else until
        every = (node for node in ast.walk(self.function) if isinstance(node, _Assignment) and node.lineno <= last)
        return sorted((node for node in every if names & _targets(node)), key=lambda node: -node.lineno)

    def behind(self, names: set[str]) -> list[_Assignment]:
        """The assignments that some names get their values by, a few steps back."""
        found: dict[_Assignment, None] = {}
        for _ in range(_STEPS):
            made = self.assigned(names)
            found |= dict.fromkeys(made)
            names = _names(*(one.value for one in made))
        return [one for one in found if not _is_shape(one.value)]


def masks(file: str, line: int, *, of_accesses: bool = True) -> Iterator[int]:
    """The lines that make the condition of the `where` of a line, or the `mask=` of its access, the last first."""
    here = _Line(file, line)
    tests = [call.args[0] for call in here.calls if _name(call.func) == "where" and call.args]
    tests += [word.value for call in here.calls for word in call.keywords if word.arg == "mask" and of_accesses]
    for test in tests:
        for made in here.assigned(_names(test)):
            yield made.lineno
            yield from (at for call in _calls(made.value) for at in _body(here.tree, _name(call.func)))
            terms = here.assigned(_names(made.value), made.lineno - 1)
            yield from (term.lineno for term in terms if isinstance(term.value, (ast.Compare, ast.BoolOp)))


def _body(tree: ast.AST, name: str) -> Iterator[int]:
    """The statements of a short function, the last first."""
    for function in _functions(tree, name):
        statements = [each for each in function.body if isinstance(each, (ast.Assign, ast.AugAssign, ast.Return))]
        yield from (each.lineno for each in reversed(statements) if len(statements) <= _FEW)


def address(file: str, line: int) -> Iterator[int]:
    """The lines that make the address of a line's access: those that move its pointer, and the indices they use."""
    if not file.endswith(".py"):
        yield from _cuda_address(file, line)
        return
    here = _Line(file, line)
    made = [one for one in here.assigned(here.names) if any("stride" in name for name in _names(one))]
    used = here.assigned(_names(*made))
    indices = [one for one in used if any(isinstance(inner, (ast.FloorDiv, ast.Mod)) for inner in ast.walk(one))]
    yield from dict.fromkeys(one.lineno for one in (*made, *indices) if one.lineno != line)


def aliases(file: str, line: int) -> Iterator[int]:
    """The lines that give what a line uses its value from another name alone, such as a pointer that is not moved."""
    here = _Line(file, line)
    used = here.assigned(here.names)
    yield from (one.lineno for one in used if isinstance(one.value, ast.Name) and one.lineno != line)


def made_by(file: str, line: int) -> Iterator[int]:
    """The lines, without loads, that make what a line uses, a few steps back."""
    here = _Line(file, line)
    made = [one for one in here.behind(here.names) if one.lineno != line]
    yield from (one.lineno for one in made if all(_name(call.func) != "load" for call in _calls(one)))


def begun(file: str, line: int) -> Iterator[int]:
    """The lines that give what a line adds to its value until then, the last first."""
    here = _Line(file, line)
    added = [node for node in here.nodes if isinstance(node, ast.AugAssign)]
    names = {name for node in added for name in _targets(node)}
    yield from (one.lineno for one in here.assigned(names, line - 1))


def given_again(file: str, first: int, last: int) -> Iterator[int]:
    """The lines between two that give what the first one assigns a value again."""
    here = _Line(file, first)
    yield from (one.lineno for one in here.assigned(here.targets, last) if one.lineno > first)


def grids(file: str, kernel: str) -> Iterator[int]:
    """The lines of a kernel's launches in its file, and those that make what their grids use."""
    for call in _launches(_tree(file), kernel):
        yield call.lineno
        yield from (one.lineno for one in _Line(file, call.lineno).behind(_names(call.func)))


def numbered(file: str, line: int, axis: int) -> Iterator[int]:
    """The lines of a line's function that ask for the number of a program along an axis."""
    for call in _calls(_Line(file, line).function):
        given = (*call.args, *(word.value for word in call.keywords))
        if _name(call.func) == "program_id" and axis in [x.value for x in given if isinstance(x, ast.Constant)]:
            yield call.lineno


def launches_with(file: str, line: int) -> Iterator[int]:
    """The lines of the launches, in the same function, that are given what a line of host code assigns."""
    here = _Line(file, line)
    for call in _launches(here.function):
        if call.lineno > line and here.targets & _names(*call.args):
            yield call.lineno


def held_by(file: str, line: int) -> str:
    """The name of the innermost Python function that holds a line; "" where none does."""
    return getattr(_Line(file, line).function, "name", "")


def loops(file: str, line: int) -> list[int]:
    """The lines of the loops that a line stands in, or that make what it uses; the last first."""
    if not file.endswith(".py"):
        around = nodes(_cuda(file), "for_statement", "while_statement", "do_statement")
        return sorted((_lines(one).start for one in around if line in _lines(one)[1:]), reverse=True)
    here = _Line(file, line)
    used = [line, *(one.lineno for one in here.assigned(here.names))]
    every = [node for node in ast.walk(here.function) if isinstance(node, ast.For)]
    return sorted((x.lineno for x in every if any(x.lineno < at <= (x.end_lineno or 0) for at in used)), reverse=True)


def ends(file: str, line: int) -> Iterator[int]:
    """The lines that make where the innermost loop around a line begins and ends, and the loop's own."""
    here = _Line(file, line)
    around = [each for each in here.nodes if isinstance(each, ast.For) and each.lineno < line]
    for loop in around[-1:]:
        limits = loop.iter.args[:2] if isinstance(loop.iter, ast.Call) else []
        yield from (each.lineno for each in here.assigned(_names(*limits), loop.lineno))
        yield loop.lineno


def ranges(lines: Sequence[tuple[str, int]]) -> Iterator[tuple[str, int]]:
    """(file, line) of what makes the ranges of the loops and the tests around a line, through the calls to it.

    Args:
        lines: (file, line) of each call, the outermost first, and of the line itself at last.
    """
    names, callee = set[str](), ""
    for file, line in reversed([each for each in lines if each[0].endswith(".py")]):
        here, held = _Line(file, line), loops(file, line)
        names = _passed(here, callee, names)
        heads = [x.iter for x in ast.walk(here.function) if isinstance(x, ast.For) and x.lineno in held]
        heads += [each.test for each in here.nodes if isinstance(each, ast.If)]
        made = here.behind(names | _names(*heads))
        yield from ((file, each.lineno) for each in made)
        names |= _names(*heads, *(each.value for each in made))
        owner = here.function if isinstance(here.function, ast.FunctionDef) else None
        names &= {each.arg for each in owner.args.args} if owner is not None else set()
        callee = owner.name if owner is not None else ""
    for file, _ in lines[:1]:
        for launch in _launches(_tree(file), callee):
            there = _Line(file, launch.lineno)
            yield from ((file, each.lineno) for each in there.assigned(_passed(there, callee, names)))


def _passed(here: _Line, callee: str, names: set[str]) -> set[str]:
    """The names that a line passes for parameters of what it calls, or launches."""
    found, order = set[str](), [each.arg for owner in _functions(here.tree, callee)[:1] for each in owner.args.args]
    for call in (call for call in here.calls if _callee(call) == callee):
        given = {word.arg: word.value for word in call.keywords} | dict(zip(order, call.args, strict=False))
        found |= _names(*(value for parameter, value in given.items() if parameter in names))
    return found


def _launches(tree: ast.AST, kernel: str | None = None) -> list[ast.Call]:
    """`f[grid](...)`: of one kernel, or all."""
    calls = [call for call in _calls(tree) if isinstance(call.func, ast.Subscript)]
    return [call for call in calls if kernel in (None, _callee(call))]


def _callee(call: ast.Call) -> str:
    """What is called, or launched: `f[grid](...)`."""
    return _name(call.func.value if isinstance(call.func, ast.Subscript) else call.func)


def _functions(tree: ast.AST, name: str) -> list[ast.FunctionDef]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == name]


def _is_shape(value: ast.expr) -> bool:
    """Whether it is what a tensor has as it comes: `q.shape`, `q.shape[2]`."""
    inner = value.value if isinstance(value, ast.Subscript) else value
    return isinstance(inner, ast.Attribute) and inner.attr == "shape"


def _calls(tree: ast.AST) -> list[ast.Call]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.Call)]


def _names(*trees: ast.AST) -> set[str]:
    return {node.id for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Name)}


def _targets(node: _Assignment) -> set[str]:
    return _names(*(node.targets if isinstance(node, ast.Assign) else [node.target]))


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


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
