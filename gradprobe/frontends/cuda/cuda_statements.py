"""Statements around a line of CUDA C++: what makes the address of an access, and the loops that it stands in."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

from ..interface import Statements
from .cuda_syntax import leaves, node_text, nodes, parse, without_comments

if TYPE_CHECKING:
    from tree_sitter import Node

_ASSIGNING = {"assignment_expression": "left", "init_declarator": "declarator"}
_LOOPS = ("for_statement", "while_statement", "do_statement")


class CudaStatements(Statements):
    """The statements of a file of CUDA C++."""

    def loops(self, line: int) -> list[int]:
        """Those that a line stands in."""
        around = [_lines(loop) for loop in nodes(_parsed(self.file), *_LOOPS)]
        return sorted((lines.start for lines in around if line in lines[1:]), reverse=True)

    def address(self, line: int) -> list[int]:
        """Those of the products that are assigned to what a line uses, and of the quotients in those."""
        functions = [node for node in nodes(_parsed(self.file), "function_definition") if line in _lines(node)]
        if not functions:
            return []
        before = [node for node in nodes(functions[-1], *_ASSIGNING) if _lines(node).start < line]
        made, found = [leaf for leaf in leaves(functions[-1]) if line in _lines(leaf)], dict[int, None]()
        for operators in ("*", "/%"):
            used = (leaf for node in made for leaf in leaves(node) if leaf.type == "identifier")
            made = _assignments(before, set(map(node_text, used)), operators)
            found |= dict.fromkeys(_lines(node).start for node in made)
        return [*found]


def _assignments(assigning: list[Node], names: set[str], operators: str) -> list[Node]:
    """The assignments to some names in which such an operator stands, the last first."""
    found: dict[object, Node] = {}
    for node in assigning:
        name = node_text(node.child_by_field_name(_ASSIGNING[node.type])).lstrip("*& ")
        terms = [child.type for term in nodes(node, "binary_expression") for child in term.children]
        if name in names and not set(operators).isdisjoint(terms):
            # Of what is declared again the last declaration counts.
            found[name if node.type == "init_declarator" else node.start_byte] = node
    return sorted(found.values(), key=lambda node: -_lines(node).start)


def _lines(node: Node) -> range:
    return range(node.start_point[0] + 1, node.end_point[0] + 2)


@functools.lru_cache(maxsize=8)
def _parsed(file: str) -> Node:
    return parse(without_comments(Path(file).read_text(errors="replace")))
