"""A .cu file as it was read: its text, what it includes, its kernels, and its host code, with its text for g++."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...model.failures import TargetFailure
from .cuda_syntax import (
    DeclaredFunction,
    blank,
    declarators,
    declared_function,
    declared_name,
    declared_type,
    directives,
    function_in,
    has,
    includes,
    leaves,
    node_text,
    nodes,
    parse,
    without_comments,
)

if TYPE_CHECKING:
    from tree_sitter import Node

# As g++ calls it.
_ANONYMOUS = "_GLOBAL__N_1"
# What only nvcc or a GPU can make something of.
_NOT_ON_A_CPU = re.compile(r"<<<|\b(?:asm|__asm__|cooperative_groups|wmma)\b")
_WHY = {
    "<<<": "a launch <<<...>>> is host code: leave it out here, and launch from Python",
    "cooperative_groups": "cooperative groups are not supported on a CPU",
    "wmma": "matrix instructions (wmma) are not supported on a CPU",
}


@dataclass(frozen=True)
class CudaSource:
    """A file, and what it includes from folders that are the user's."""

    path: Path
    text: str
    included: tuple[tuple[Path, str], ...]
    """Path and text of each."""

    @functools.cached_property
    def sha256(self) -> str:
        """Of the file alone."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    @functools.cached_property
    def key(self) -> str:
        """Changes with the file and with all that it includes."""
        texts = ((self.path, self.text), *self.included)
        return hashlib.sha256("".join(f"{path}\n{len(text)}\n{text}" for path, text in texts).encode()).hexdigest()

    @functools.cached_property
    def of_kernels(self) -> str:
        """The text with spaces for host code."""
        return without_pieces(self.text, host_code(self.text))

    @functools.cached_property
    def plain(self) -> str:
        """Without comments, strings, host code and what `#if` leaves out; every other character in its place."""
        return without_comments(self.of_kernels)

    @functools.cached_property
    def everything(self) -> str:
        """That, and what is included."""
        return "\n".join((*(without_comments(text) for _, text in self.included), self.plain))

    @property
    def kernels(self) -> tuple[str, ...]:
        """The names of those that are no templates."""
        return tuple(name for name, kernel in self.declared.items() if not kernel.is_template)

    def dynamic_array_of(self, kernel: str) -> str:
        """The name of its `extern __shared__` array: its own, else that of one in the file; "" where there is none."""
        roots = [self.declared[kernel].node] if kernel in self.declared else []
        return next((name for root in (*roots, *self.trees) for name in _dynamic(root)), "")

    @functools.cached_property
    def namespaces(self) -> tuple[str, ...]:
        """Those in which kernels stand, "outer::inner"; not the anonymous one, whose names need no prefix."""
        scopes = [[name for name in _scopes(kernel.node) if name != _ANONYMOUS] for kernel in self.declared.values()]
        return tuple(dict.fromkeys("::".join(names) for names in scopes if names))

    @functools.cached_property
    def shared_types(self) -> dict[str, str]:
        """What shared arrays are declared as, by name; those of one name and two types are left out."""
        found: dict[str, set[str]] = {}
        for declaration in (node for root in self.trees for node in nodes(root, "declaration")):
            for declarator in declarators(declaration) if has(declaration, "__shared__") else ():
                kind = declared_type(declaration, declarator)
                found.setdefault(node_text(declared_name(declarator)), set()).add(kind)
        return {name: types.pop() for name, types in found.items() if len(types) == 1}

    def unsupported_on_a_cpu(self) -> str:
        """The first line that cannot run on a CPU, and why; "" where there is none."""
        for found in _NOT_ON_A_CPU.finditer(self.plain):
            why = _WHY.get(found[0], "inline PTX is not supported on a CPU")
            # Of macros a kernel may use those with PTX; a launch in one is the host's.
            is_in_macro = any(line.start() <= found.start() < line.end() for line in directives(self.plain))
            if found[0] not in _WHY or not is_in_macro:
                return f"{self.path.name}:{self.plain.count(chr(10), 0, found.start()) + 1}: {why}"
        return ""

    @functools.cached_property
    def trees(self) -> tuple[Node, ...]:
        """Of what is included, then of the file."""
        return (*(parse(without_comments(text)) for _, text in self.included), parse(self.plain))

    @functools.cached_property
    def declared(self) -> dict[str, DeclaredFunction]:
        """The kernels by name; the last declaration of each counts."""
        every = nodes(self.trees[-1], "function_definition", "declaration")
        found = (declared_function(node) for node in every if has(node, "__global__"))
        return {kernel.name: kernel for kernel in found if kernel is not None}


@dataclass(frozen=True)
class Unit:
    """A source and how it is compiled."""

    source: CudaSource
    defines: tuple[tuple[str, str], ...] = ()
    include: tuple[str, ...] = ()
    """Folders."""
    has_host: bool = False
    """Whether its host code is compiled too."""


def read_source(path: Path, folders: Sequence[str | Path] = ()) -> CudaSource:
    """The file as it is now.

    Args:
        path: of the file.
        folders: where what it includes is sought besides the file's own.

    Raises:
        TargetFailure: it is not there, or is no text.
    """
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise TargetFailure(f"cannot read the CUDA source {path}: {error}", "is the path right?") from error
    if chr(0) in text:
        raise TargetFailure(f"cannot read the CUDA source {path}: it is not text", "g++ and NVRTC read UTF-8")
    return _as_before(CudaSource(path.resolve(), text, _included(path.resolve(), text, folders)))


@functools.lru_cache(maxsize=64)
def _as_before(source: CudaSource) -> CudaSource:
    """The equal one that was read before, with what was found in it."""
    return source


def _included(path: Path, text: str, folders: Sequence[str | Path]) -> tuple[tuple[Path, str], ...]:
    found: dict[Path, str] = {}
    waiting = [(path, text)]
    while waiting:
        file, content = waiting.pop()
        for name in (include[1] for include in includes(content, without_comments(content))):
            places = (folder / name for folder in (file.parent, path.parent, *map(Path, folders)))
            other = next((place.resolve() for place in places if place.is_file()), path)
            if other not in (path, *found):
                found[other] = other.read_text(encoding="utf-8", errors="replace")
                waiting.append((other, found[other]))
    return tuple(sorted(found.items()))


def _dynamic(root: Node) -> Iterator[str]:
    """The names of the `extern __shared__` arrays under a node."""
    for node in nodes(root, "declaration"):
        if has(node, "extern") and has(node, "__shared__"):
            yield from filter(None, (node_text(declared_name(each)) for each in declarators(node)))


def _scopes(node: Node) -> list[str]:
    """The namespaces around a node, the outermost first."""
    if node.parent is None:
        return []
    own: list[str] = []
    if node.parent.type == "namespace_definition":
        name = node_text(node.parent.child_by_field_name("name")) or _ANONYMOUS
        own = name.replace(" ", "").split("::")
    return [*_scopes(node.parent), *own]


# --- Host code

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
    needs_python = bool(_qualifiers(node) & _OF_PYTHON) or any(map(_BINDING.fullmatch, tokens))
    return HostPiece(node.start_byte, parts[-1].end_byte, _name(node), tokens, needs_python, node)


def _is_host(piece: HostPiece) -> bool:
    """Whether it launches a kernel, or uses PyTorch, the CUDA runtime or what no device has of the C++ library."""
    is_standard = piece.node is not None and "std" in _qualifiers(piece.node) and bool(piece.tokens & _STANDARD)
    return piece.needs_python or is_standard or any(map(_API.fullmatch, piece.tokens))


def _qualifiers(node: Node) -> set[str]:
    return {node_text(name) for name in nodes(node, "namespace_identifier")}


def _name(node: Node) -> str:
    """Of a function or an alias; "" of anything else."""
    if node.type == "template_declaration":
        node = node.children[-1]
    if node.type == "alias_declaration":
        return node_text(node.child_by_field_name("name"))
    return node_text(declared_name(function_in(node)))
