"""Statements of a kernel's source: what defines a mask, and the loop that a line stands in."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeGuard

from ..source.cuda_syntax import leaves, node_text, nodes, parse, without_comments

if TYPE_CHECKING:
    from tree_sitter import Node

# Notes of lines that stand beside a sum: each may be where it leaves something out.
LOOP, RANGE, COUNTED = "the loop", "its range", "counted here"


def masks(file: str, line: int, *, of_accesses: bool = True) -> Iterator[int]:
    """The lines that make the condition of the `where` of a line, or the `mask=` of its access, the last first."""
    function = _function(file, line)
    called = [node for node in _at(function, line) if isinstance(node, ast.Call)]
    tests = [call.args[0] for call in called if _name(call.func) == "where" and call.args]
    tests += [word.value for call in called for word in call.keywords if word.arg == "mask" and of_accesses]
    for test in tests:
        for one in _assigned(function, _names(ast.walk(test)), line):
            yield one.lineno
            yield from (at for call in ast.walk(one.value) if isinstance(call, ast.Call) for at in _body(file, call))
            terms = _assigned(function, _names(ast.walk(one.value)), one.lineno - 1)
            yield from (term.lineno for term in terms if isinstance(term.value, (ast.Compare, ast.BoolOp)))


# Statements of a helper that makes a mask up to which all are told.
_FEW = 8


def _body(file: str, call: ast.Call) -> Iterator[int]:
    """The statements of a short function of the file that is called, the last first."""
    for function in (each for each in ast.walk(_tree(file)) if _is(each, _name(call.func))):
        statements = [each for each in function.body if isinstance(each, (ast.Assign, ast.AugAssign, ast.Return))]
        yield from (each.lineno for each in reversed(statements) if len(statements) <= _FEW)


def address(file: str, line: int) -> Iterator[int]:
    """The lines that make the address of a line's access: those that move its pointer, and the indices they use."""
    if not file.endswith(".py"):
        yield from _cuda_address(file, line)
        return
    function = _function(file, line)
    moved = _assigned(function, _names(_at(function, line)), line)
    made = [one for one in moved if any("stride" in name for name in _names(ast.walk(one)))]
    used = _assigned(function, _names(inner for one in made for inner in ast.walk(one)), line)
    indices = [one for one in used if any(isinstance(inner, (ast.FloorDiv, ast.Mod)) for inner in ast.walk(one))]
    yield from dict.fromkeys(one.lineno for one in (*made, *indices) if one.lineno != line)


def aliases(file: str, line: int) -> Iterator[int]:
    """The lines that give what a line uses its value from another name alone, such as a pointer that is not moved."""
    function = _function(file, line)
    used = _assigned(function, _names(_at(function, line)), line)
    yield from (one.lineno for one in used if isinstance(one.value, ast.Name) and one.lineno != line)


def made_by(file: str, line: int) -> Iterator[int]:
    """The lines, without loads, that make what a line uses, a few steps back."""
    function = _function(file, line)
    made = _behind(function, _names(_at(function, line)), line)
    loads = [one for one in made if any(isinstance(x, ast.Call) and _name(x.func) == "load" for x in ast.walk(one))]
    yield from (one.lineno for one in made if one not in loads and one.lineno != line)


def begun(file: str, line: int) -> Iterator[int]:
    """The lines that give what a line adds to its value until then, the last first."""
    function = _function(file, line)
    added = [one for one in _at(function, line) if isinstance(one, ast.AugAssign)]
    before = _assigned(function, {name for one in added for name in _targets(one)}, line - 1)
    yield from (one.lineno for one in before)


def grids(file: str, kernel: str) -> Iterator[int]:
    """The lines of a kernel's launches in its file, and those that make what their grids use."""
    for call in _launches(file):
        if isinstance(call.func, ast.Subscript) and _callee(call) == kernel:
            yield call.lineno
            used = _names(ast.walk(call.func.slice))
            yield from (one.lineno for one in _behind(_function(file, call.lineno), used, call.lineno))


def numbered(file: str, line: int, axis: int) -> Iterator[int]:
    """The lines of a line's function that ask for the number of a program along an axis."""
    asked = (node for node in ast.walk(_function(file, line)) if isinstance(node, ast.Call))
    of_axis = (node for node in asked if _name(node.func) == "program_id" and axis in _constants(node))
    yield from (node.lineno for node in of_axis)


def _constants(call: ast.Call) -> list[object]:
    given = (*call.args, *(word.value for word in call.keywords))
    return [each.value for each in given if isinstance(each, ast.Constant)]


def _launches(file: str) -> list[ast.Call]:
    calls = (node for node in ast.walk(_tree(file)) if isinstance(node, ast.Call))
    return [call for call in calls if isinstance(call.func, ast.Subscript)]


def launches_with(file: str, line: int) -> Iterator[int]:
    """The lines of the launches, in the same function, that are given what a line of host code assigns."""
    if not file.endswith(".py"):
        return
    function = _function(file, line)
    names = {name for one in _at(function, line) if isinstance(one, ast.Assign) for name in _targets(one)}
    calls = (node for node in ast.walk(function) if isinstance(node, ast.Call) and node.lineno > line)
    for call in (call for call in calls if isinstance(call.func, ast.Subscript)):
        if names & _names(inner for given in call.args for inner in ast.walk(given)):
            yield call.lineno


def given_again(file: str, first: int, last: int) -> Iterator[int]:
    """The lines between two that give what the first one assigns a value again."""
    function = _function(file, first)
    made = [one for one in _at(function, first) if isinstance(one, (ast.Assign, ast.AugAssign))]
    again = _assigned(function, {name for one in made for name in _targets(one)}, last)
    yield from (one.lineno for one in again if one.lineno > first)


def held_by(file: str, line: int) -> str:
    """The name of the innermost Python function that holds a line; "" where none does."""
    return getattr(_function(file, line), "name", "") if file.endswith(".py") else ""


def _names(nodes: Iterable[ast.AST]) -> set[str]:
    return {node.id for node in nodes if isinstance(node, ast.Name)}


def loops(file: str, line: int) -> list[int]:
    """The lines of the loops that a line stands in, or that make what it uses; the last first."""
    if not file.endswith(".py"):
        around = nodes(_cuda(file), "for_statement", "while_statement", "do_statement")
        return sorted((_lines(one).start for one in around if line in _lines(one)[1:]), reverse=True)
    function = _function(file, line)
    found = [node for node in ast.walk(function) if isinstance(node, ast.For)]
    used = [line, *(one.lineno for one in _assigned(function, _names(_at(function, line)), line))]
    return sorted(
        (one.lineno for one in found if any(one.lineno < at <= (one.end_lineno or 0) for at in used)), reverse=True
    )


def ends(file: str, line: int) -> Iterator[int]:
    """The lines that make where the innermost loop around a line begins and ends, and the loop's own."""
    function = _function(file, line)
    around = [each for each in _at(function, line) if isinstance(each, ast.For) and each.lineno < line]
    for loop in around[-1:]:
        limits = loop.iter.args[:2] if isinstance(loop.iter, ast.Call) else []
        names = _names(inner for each in limits for inner in ast.walk(each))
        yield from (each.lineno for each in _assigned(function, names, loop.lineno))
        yield loop.lineno


def ranges(lines: Sequence[tuple[str, int]]) -> Iterator[tuple[str, int]]:
    """(file, line) of what makes the ranges of the loops and the tests around a line, through the calls to it.

    Args:
        lines: (file, line) of each call, the outermost first, and of the line itself at last.
    """
    names, callee = set[str](), ""
    for file, line in reversed([each for each in lines if each[0].endswith(".py")]):
        function = _function(file, line)
        names = _passed(file, line, callee, names)
        held = loops(file, line)
        heads = [each.iter for each in ast.walk(function) if isinstance(each, ast.For) and each.lineno in held]
        heads += [each.test for each in _at(function, line) if isinstance(each, ast.If)]
        names |= {name for head in heads for name in _names(ast.walk(head))}
        made = _behind(function, names, line)
        yield from ((file, each.lineno) for each in made)
        names |= {name for each in made for name in _names(ast.walk(each.value))}
        names, callee = names & _parameters(function), getattr(function, "name", "")
    for file, _ in lines[:1]:
        for launch in (each for each in _launches(file) if _callee(each) == callee):
            given = _passed(file, launch.lineno, callee, names)
            yield from ((file, each.lineno) for each in _assigned(_function(file, launch.lineno), given, launch.lineno))


def _parameters(function: ast.AST) -> set[str]:
    return {each.arg for each in function.args.args} if isinstance(function, ast.FunctionDef) else set()


def _passed(file: str, line: int, callee: str, names: set[str]) -> set[str]:
    """The names that a line passes for parameters of what it calls."""
    function, functions = _function(file, line), [each for each in ast.walk(_tree(file)) if _is(each, callee)]
    called = [node for node in _at(function, line) if isinstance(node, ast.Call) and _callee(node) == callee]
    found = set[str]()
    for call in called:
        given = {word.arg: word.value for word in call.keywords}
        order = [each.arg for owner in functions[:1] for each in owner.args.args]
        given |= dict(zip(order, call.args, strict=False))
        found |= {name for parameter in names & given.keys() for name in _names(ast.walk(given[parameter]))}
    return found


def _callee(call: ast.Call) -> str:
    """What is called, or launched: `f[grid](...)`."""
    return _name(call.func.value if isinstance(call.func, ast.Subscript) else call.func)


def _is(node: ast.AST, name: str) -> TypeGuard[ast.FunctionDef]:
    return isinstance(node, ast.FunctionDef) and node.name == name


# How many steps back a range is followed in one function.
_STEPS = 3


def _behind(function: ast.AST, names: set[str], line: int) -> list[ast.Assign | ast.AugAssign]:
    """The assignments before a line that some names get their values by, a few steps back."""
    found: dict[ast.Assign | ast.AugAssign, None] = {}
    for _ in range(_STEPS):
        made = _assigned(function, names, line)
        found |= dict.fromkeys(made)
        names = {name for one in made for name in _names(ast.walk(one.value))}
    return [one for one in found if not _is_shape(one.value)]


def _is_shape(value: ast.expr) -> bool:
    """Whether it is what a tensor has as it comes: `q.shape`, `q.shape[2]`."""
    inner = value.value if isinstance(value, ast.Subscript) else value
    return isinstance(inner, ast.Attribute) and inner.attr == "shape"


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
    for one in assigning:
        name = node_text(one.child_by_field_name(_ASSIGNING[one.type])).lstrip("*& ")
        terms = (child.type for term in nodes(one, "binary_expression") for child in term.children)
        if name in names and any(sign in operators for sign in terms):
            # Of what is declared again the last declaration counts.
            found[name if one.type == "init_declarator" else one.start_byte] = one
    return sorted(found.values(), key=lambda one: -_lines(one).start)


def _lines(node: Node) -> range:
    return range(node.start_point[0] + 1, node.end_point[0] + 2)


@functools.lru_cache(maxsize=8)
def _cuda(file: str) -> Node:
    return parse(without_comments(Path(file).read_text(errors="replace")))


def _assigned(function: ast.AST, names: set[str], line: int) -> list[ast.Assign | ast.AugAssign]:
    found = [
        node for node in ast.walk(function) if isinstance(node, (ast.Assign, ast.AugAssign)) and node.lineno <= line
    ]
    of_names = [one for one in found if names & set(_targets(one))]
    return sorted(of_names, key=lambda one: -one.lineno)


def _targets(node: ast.Assign | ast.AugAssign) -> Iterator[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    yield from (one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name))


def _at(function: ast.AST, line: int) -> list[ast.AST]:
    def holds(node: ast.AST) -> bool:
        first, last = getattr(node, "lineno", 0), getattr(node, "end_lineno", 0)
        return bool(first and first <= line <= last)

    return [node for node in ast.walk(function) if holds(node)]


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _function(file: str, line: int) -> ast.AST:
    """The innermost function that holds a line; an empty module where the file cannot be read."""
    tree = _tree(file)
    around = [node for node in _at(tree, line) if isinstance(node, ast.FunctionDef)]
    return max(around, key=lambda node: node.lineno, default=tree)


@functools.lru_cache(maxsize=8)
def _tree(file: str) -> ast.AST:
    try:
        return ast.parse(Path(file).read_text(errors="replace"))
    except (OSError, SyntaxError, ValueError):
        return ast.Module([], [])
