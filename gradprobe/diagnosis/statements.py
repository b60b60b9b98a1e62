"""Statements of a kernel's source: what defines a mask, and the loop that a line stands in."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ..source.cuda_syntax import leaves, nodes, parse, without_comments, words

if TYPE_CHECKING:
    from tree_sitter import Node


def masks(file: str, line: int) -> Iterator[int]:
    """The lines that make the condition of the `where` of a line, or the `mask=` of its access, the last first."""
    function = _function(file, line)
    called = [node for node in _at(function, line) if isinstance(node, ast.Call)]
    tests = [call.args[0] for call in called if _name(call.func) == "where" and call.args]
    tests += [word.value for call in called for word in call.keywords if word.arg == "mask"]
    for test in tests:
        yield from (one.lineno for one in _assigned(function, _names(ast.walk(test)), line))


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
    names = {words(leaf) for leaf in used if leaf.type == "identifier"}
    found: dict[object, Node] = {}
    for one in assigning:
        name = words(one.child_by_field_name(_ASSIGNING[one.type])).lstrip("*& ")
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
