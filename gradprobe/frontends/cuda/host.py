"""Host code of a CUDA source: which of its text that is, the functions that launch kernels, and their text for g++."""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .cuda_syntax import (
    DeclaredFunction,
    blank,
    declared_function,
    declared_name,
    function_in,
    includes,
    leaves,
    node_text,
    nodes,
    parse,
    without_comments,
)

if TYPE_CHECKING:
    from tree_sitter import Node

# Headers of PyTorch and of Python, and those of the C++ library that no device code can use.
_HEADERS = re.compile(
    r"(?:torch|ATen|c10|pybind11)/|(?:Python|iostream|fstream|sstream|iomanip|vector|string|map|memory|chrono|random)(?:\.h)?$"
)
_ON_DEVICE = {"__global__", "__device__", "__constant__", "__shared__"}
_OF_PYTHON = {"torch", "at", "c10", "pybind11"}
_STANDARD = {"cout", "cerr", "endl", "vector", "string", "map", "chrono", "unique_ptr", "shared_ptr"}
# Declarations inside these are declarations of the file.
_TRANSPARENT = ("namespace_definition", "linkage_specification")
_BINDING = re.compile(r"PYBIND11_MODULE|TORCH_\w+")
_API = re.compile(r"<<<|cuda(?:Malloc|Memcpy|Memset|Free|Device|Stream|Event|Get|Launch|Func|Set|Error)\w*")


@dataclass(frozen=True)
class HostPiece:
    """A declaration of host code, or the `#include` of a header for it."""

    start: int
    end: int
    name: str
    """Of the function, or `#include <...>`; "" of a declaration without a name."""
    tokens: frozenset[str] = frozenset()
    needs_python: bool = False
    """Whether it uses PyTorch or Python, without which no compiler can read it."""
    node: Node | None = None


@functools.lru_cache(maxsize=64)
def host_code(text: str) -> tuple[HostPiece, ...]:
    """The pieces of a file that are host code. None if no function launches a kernel or uses PyTorch or CUDA's API."""
    plain = without_comments(text)
    pieces = [piece for piece in map(_piece, _declarations(parse(plain))) if not piece.tokens & _ON_DEVICE]
    found = _with_users((piece for piece in pieces if _is_host(piece)), pieces, {"main"})
    of_host = (include for include in includes(text, plain) if _HEADERS.match(include[1]))
    headers = [HostPiece(include.start(), include.end(), include[0].strip()) for include in of_host]
    if not found and not any("/" in header.name or "Python" in header.name for header in headers):
        return ()
    return tuple(sorted((*headers, *found), key=lambda piece: piece.start))


@functools.lru_cache(maxsize=64)
def launching_functions(text: str) -> Mapping[str, DeclaredFunction]:
    """The functions of a file that launch kernels, neither templates nor members nor overloaded, by name."""
    functions: dict[str, list[HostPiece]] = {}
    for piece in _compiled(text):
        if piece.node is not None and any(True for _ in nodes(piece.node, "function_definition")):
            functions.setdefault(piece.name, []).append(piece)
    single = [pieces[0] for pieces in functions.values() if len(pieces) == 1]
    launching = _with_users((piece for piece in single if "<<<" in piece.tokens), single)
    found = (declared_function(piece.node) for piece in launching if piece.node is not None)
    return {function.name: function for function in found if function is not None}


def with_launches(text: str) -> str:
    """The text with its host code, each `<<<...>>>` a call; spaces for what needs PyTorch or Python, and for `main`."""
    kept, original = _compiled(text), text
    text = without_pieces(text, [piece for piece in host_code(text) if piece not in kept])
    calls = [call for piece in kept if piece.node is not None for call in nodes(piece.node, "call_expression")]
    for call in sorted(calls, key=lambda node: -node.start_byte):
        sizes = next((child for child in call.children if child.type == "kernel_call_syntax"), None)
        if sizes is not None:
            kernel = original[call.start_byte : sizes.start_byte]
            given = original[sizes.start_byte + len("<<<") : sizes.end_byte - len(">>>")]
            launch = f'gp_launching("{" ".join(kernel.split())}", &{kernel}, {given})'
            text = text[: call.start_byte] + launch + text[sizes.end_byte :]
    return text


def without_pieces(text: str, pieces: Iterable[HostPiece]) -> str:
    """The text with spaces for some pieces."""
    return functools.reduce(lambda left, piece: blank(left, piece.start, piece.end), pieces, text)


def _compiled(text: str) -> list[HostPiece]:
    """The host code that g++ can run: what uses neither PyTorch nor Python nor a function that does."""
    pieces = [piece for piece in host_code(text) if piece.node is not None]
    out = _with_users((piece for piece in pieces if piece.name == "main" or piece.needs_python), pieces)
    return [piece for piece in pieces if piece not in out]


def _with_users(
    first: Iterable[HostPiece], pieces: Collection[HostPiece], names: Collection[str] = ()
) -> list[HostPiece]:
    """Some pieces, and those that use one of them, or one of some names, by its name, directly or through others."""
    found = new = [*first]
    known = {*names}
    while new:
        known |= {piece.name for piece in new} - {""}
        new = [piece for piece in pieces if piece not in found and piece.tokens & known]
        found = found + new
    return found


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


def _piece(parts: Sequence[Node]) -> HostPiece:
    node = parts[0]
    tokens = frozenset(node_text(leaf) for leaf in leaves(node))
    needs_python = bool(_scopes(node) & _OF_PYTHON) or any(map(_BINDING.fullmatch, tokens))
    return HostPiece(node.start_byte, parts[-1].end_byte, _name(node), tokens, needs_python, node)


def _is_host(piece: HostPiece) -> bool:
    """Whether it launches a kernel, or uses PyTorch, the CUDA runtime or what no device has of the C++ library."""
    is_standard = piece.node is not None and "std" in _scopes(piece.node) and bool(piece.tokens & _STANDARD)
    return piece.needs_python or is_standard or any(map(_API.fullmatch, piece.tokens))


def _scopes(node: Node) -> set[str]:
    return {node_text(name) for name in nodes(node, "namespace_identifier")}


def _name(node: Node) -> str:
    """Of a function or an alias; "" of anything else."""
    if node.type == "template_declaration":
        node = node.children[-1]
    if node.type == "alias_declaration":
        return node_text(node.child_by_field_name("name"))
    return node_text(declared_name(function_in(node)))
