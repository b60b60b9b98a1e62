"""Host code in a .cu file: what neither NVRTC nor a CPU can compile, and kernels do not need."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..source.cuda_syntax import declarators, declared_name, includes, leaves, nodes, parse, words

if TYPE_CHECKING:
    from tree_sitter import Node

# Headers of PyTorch and of Python, and those of the C++ library that no device code can use.
_HEADERS = re.compile(
    r"(?:torch|ATen|c10|pybind11)/|(?:Python|iostream|fstream|sstream|iomanip|vector|string|map|memory|chrono|random)(?:\.h)?$"
)
_ON_DEVICE = {"__global__", "__device__", "__constant__", "__shared__"}
_NAMESPACES = {"torch", "at", "c10", "pybind11"}
_STANDARD = {"cout", "cerr", "endl", "vector", "string", "map", "chrono", "unique_ptr", "shared_ptr"}
# Declarations inside these are declarations of the file.
_TRANSPARENT = ("namespace_definition", "linkage_specification")
_API = re.compile(
    r"PYBIND11_MODULE|TORCH_\w+|cuda(?:Malloc|Memcpy|Memset|Free|Device|Stream|Event|Get|Launch|Func|Set|Error)\w*"
)


@dataclass(frozen=True)
class LeftOut:
    """A piece of host code."""

    start: int
    end: int
    name: str
    """Of the function, or `#include <...>`; "" of a declaration without a name."""


def host_code(text: str, plain: str) -> tuple[LeftOut, ...]:
    """The pieces of a file that are host code. None if no function launches a kernel or uses PyTorch or CUDA's API.

    Args:
        text: of the file.
        plain: the same from `without_comments`.
    """
    pieces = [piece for piece in map(_Piece, _declarations(parse(plain))) if not piece.tokens & _ON_DEVICE]
    found: list[_Piece] = []
    calls = {"main"}
    while new := [piece for piece in pieces if piece not in found and (piece.is_host or piece.tokens & calls)]:
        found += new
        calls |= {piece.name for piece in new} - {""}
    of_host = (include for include in includes(text, plain) if _HEADERS.match(include[1]))
    headers = [LeftOut(include.start(), include.end(), include[0].strip()) for include in of_host]
    if not found and not any("/" in header.name or "Python" in header.name for header in headers):
        return ()
    return tuple(sorted((*headers, *(piece.left_out for piece in found)), key=lambda one: one.start))


class _Piece:
    """A declaration or definition of a file or of one of its namespaces."""

    def __init__(self, parts: Sequence[Node]) -> None:
        self.left_out = LeftOut(parts[0].start_byte, parts[-1].end_byte, _name(parts[0]))
        self.name = self.left_out.name
        self.tokens = {words(leaf) for leaf in leaves(parts[0])}
        self._node = parts[0]

    @property
    def is_host(self) -> bool:
        """Whether it launches a kernel, or uses PyTorch or the CUDA runtime."""
        if "<<<" in self.tokens or any(map(_API.fullmatch, self.tokens)):
            return True
        scopes = {words(node) for node in nodes(self._node, "namespace_identifier")}
        return bool(scopes & _NAMESPACES) or ("std" in scopes and bool(self.tokens & _STANDARD))


def _declarations(root: Node) -> Iterator[list[Node]]:
    """The declarations of a file and of its namespaces, each with the `;` that ends it."""
    parts: list[Node] = []
    for node in root.children:
        inner = node.child_by_field_name("body") if node.type in _TRANSPARENT else None
        if inner is not None and inner.type == "declaration_list":
            yield from _declarations(inner)
        elif node.type == ";" and parts:
            parts.append(node)
        elif node.is_named:
            if parts:
                yield parts
            parts = [node]
    if parts:
        yield parts


def _name(node: Node) -> str:
    """Of a function or an alias; "" of anything else."""
    if node.type == "template_declaration":
        node = node.children[-1]
    if node.type == "alias_declaration":
        return words(node.child_by_field_name("name"))
    function = next((each for top in declarators(node) for each in nodes(top, "function_declarator")), None)
    return words(declared_name(function))
