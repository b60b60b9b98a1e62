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
from . import cuda_syntax as syntax
from .cuda_syntax import DeclaredFunction, Parameter, node_text, nodes

if TYPE_CHECKING:
    from tree_sitter import Node

# What only nvcc or a GPU can make something of.
_ON_A_GPU = {
    "<<<": "a launch <<<...>>> in a kernel",
    "asm": "inline PTX",
    "cooperative_groups": "cooperative groups",
    "wmma": "matrix instructions (wmma)",
}
_NAMES_ON_A_GPU = re.compile(r"<<<|\b(?:asm|__asm__|cooperative_groups|wmma)\b")


@dataclass(frozen=True)
class CudaSource:
    """A file, what it includes from folders that are the user's, and how it is compiled."""

    path: Path
    text: str
    included: tuple[tuple[Path, str], ...]
    """Path and text of each."""
    defines: tuple[tuple[str, str], ...] = ()
    include: tuple[str, ...] = ()
    """Folders."""

    @functools.cached_property
    def sha256(self) -> str:
        """Of the file alone."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    @functools.cached_property
    def of_kernels(self) -> str:
        """The text with spaces for host code."""
        return _without(self.text, host_code(self.text))

    @functools.cached_property
    def plain(self) -> str:
        """Without comments, strings, host code and what `#if` leaves out; every other character in its place."""
        return syntax.without_comments(self.of_kernels)

    @functools.cached_property
    def texts(self) -> tuple[str, ...]:
        """So of what is included, then that."""
        return (*(syntax.without_comments(text) for _, text in self.included), self.plain)

    @functools.cached_property
    def aliases(self) -> Mapping[str, str]:
        """The types behind its macros and aliases. Options of the compiler override macros."""
        text = "\n".join(self.texts)
        found = dict(re.findall(r"^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+([\w ]+?)[ \t]*$", text, re.MULTILINE))
        found |= dict(re.findall(r"\busing\s+(\w+)\s*=\s*([\w ]+?)\s*;", text))
        found |= {name: kind for kind, name in re.findall(r"\btypedef\s+([\w ]+?)\s+(\w+)\s*;", text)}
        return found | dict(self.defines)

    @functools.cached_property
    def granule(self) -> int:
        """The bytes of the smallest element that its shared memory can hold."""
        words = " ".join((*self.texts, *(value for _, value in self.defines)))
        if re.search(r"\b(?:bool|u?char|u?int8_t)\b", words):
            return 1
        return 2 if re.search(r"half|bfloat16|\bu?short\b|int16_t", words) else 4

    @functools.cached_property
    def declared(self) -> dict[str, DeclaredFunction]:
        """The kernels by name; the last declaration of each counts."""
        every = nodes(syntax.parse(self.plain), "function_definition", "declaration")
        found = (syntax.declared_function(node) for node in every if syntax.has(node, "__global__"))
        return {kernel.name: kernel for kernel in found if kernel is not None}

    @property
    def kernels(self) -> tuple[str, ...]:
        """The names of those that are no templates."""
        return tuple(name for name, kernel in self.declared.items() if not kernel.is_template)

    @functools.cached_property
    def namespaces(self) -> tuple[str, ...]:
        """Those in which kernels stand, "outer::inner"; the anonymous one needs no name."""
        found: dict[str, None] = {}
        for kernel in self.declared.values():
            names: list[str] = []
            node = kernel.node.parent
            while node is not None:
                if node.type == "namespace_definition":
                    names.insert(0, node_text(node.child_by_field_name("name")).replace(" ", ""))
                node = node.parent
            found["::".join(filter(None, names))] = None
        return tuple(filter(None, found))

    def dynamic_array_of(self, kernel: str) -> str:
        """The name of its `extern __shared__` array: its own, else that of one in the file; "" where there is none."""
        roots = [self.declared[kernel].node, *map(syntax.parse, self.texts)]
        shared = (array for root in roots for array in _shared_arrays(root))
        return next((name for name, _, is_dynamic in shared if is_dynamic), "")

    @functools.cached_property
    def shared_types(self) -> dict[str, str]:
        """What shared arrays are declared as, by name; "void" of those of one name and two types."""
        found: dict[str, str] = {}
        for text in self.texts:
            for name, kind, _ in _shared_arrays(syntax.parse(text)):
                found[name] = kind if found.get(name, kind) == kind else "void"
        return found

    def unsupported_on_a_cpu(self) -> str:
        """The first line that cannot run on a CPU, and why; "" where there is none."""
        for found in _NAMES_ON_A_GPU.finditer(self.plain):
            name = found[0].strip("_")
            # Of macros a kernel may use those with PTX; a launch in one is the host's.
            if name == "asm" or not syntax.is_directive(self.plain, found.start()):
                line = self.plain.count("\n", 0, found.start()) + 1
                return f"{self.path.name}:{line}: {_ON_A_GPU[name]}"
        return ""


@dataclass(frozen=True)
class KernelEntry:
    """One kernel of a source, or one instance of a template."""

    source: CudaSource
    name: str
    parameters: tuple[Parameter, ...]

    @property
    def file(self) -> Path:
        return self.source.path

    @property
    def line(self) -> int:
        """Where its name stands."""
        return self.source.declared[self.plain_name].line

    @property
    def plain_name(self) -> str:
        """Without the arguments of a template."""
        return self.name.partition("<")[0].strip()


def read_source(path: Path, folders: Sequence[str] = (), defines: Mapping[str, str] | None = None) -> CudaSource:
    """The file as it is now; raises TargetFailure where it is not there, or is no text.

    Folders are where what it includes is sought besides its own.
    """
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise TargetFailure(f"cannot read the CUDA source {path}: {error}", "is the path right?") from error
    if chr(0) in text:
        raise TargetFailure(f"cannot read the CUDA source {path}: it is not text", "g++ and NVRTC read UTF-8")
    path, macros = path.resolve(), tuple(sorted((defines or {}).items()))
    return _as_before(CudaSource(path, text, _included(path, text, folders), macros, tuple(folders)))


@functools.lru_cache(maxsize=64)
def _as_before(source: CudaSource) -> CudaSource:
    """The equal one that was read before, with what was found in it."""
    return source


def _included(path: Path, text: str, folders: Sequence[str]) -> tuple[tuple[Path, str], ...]:
    found: dict[Path, str] = {}
    waiting = [(path, text)]
    while waiting:
        file, content = waiting.pop()
        for include in syntax.includes(content, syntax.without_comments(content)):
            places = (folder / include[1] for folder in (file.parent, path.parent, *map(Path, folders)))
            other = next((place.resolve() for place in places if place.is_file()), path)
            if other not in (path, *found):
                found[other] = other.read_text(encoding="utf-8", errors="replace")
                waiting.append((other, found[other]))
    return tuple(sorted(found.items()))


def _shared_arrays(root: Node) -> Iterator[tuple[str, str, bool]]:
    """(name, type, whether the launch says its size) of each shared array that is declared under a node."""
    for declaration in nodes(root, "declaration"):
        is_dynamic = syntax.has(declaration, "extern")
        for declarator in syntax.declarators(declaration) if syntax.has(declaration, "__shared__") else ():
            name = syntax.declared_name(declarator)
            yield node_text(name), syntax.declared_type(declaration, declarator), is_dynamic


_ERROR = re.compile(r"^([^\s:(][^:(\n]*)(?::(\d+)(?::\d+)?:|\((\d+)\):) (?:\w+ )?error(?: #\S+)?: (.*)$", re.MULTILINE)
_MOST_ERRORS = 3


def compile_errors(printed: str, found: Iterable[str] = ()) -> str:
    """The first errors that g++ or NVRTC prints, with the lines of the file, behind those that were found already."""
    errors = dict.fromkeys(found)
    for file, line, other_line, words in _ERROR.findall(printed):
        errors[f"{Path(file).name}:{line or other_line}: {words}"] = None
    return "; ".join([*errors][:_MOST_ERRORS]) or printed.strip()[-500:]


# --- Host code

# Headers of PyTorch and of Python, and those of the C++ library that no device code can use.
_HEADERS = re.compile(
    r"(?:torch|ATen|c10|pybind11)/|(?:Python|iostream|fstream|sstream|iomanip|vector|string|map|memory|chrono|random)(?:\.h)?$"
)
_ON_DEVICE = {"__global__", "__device__", "__constant__", "__shared__"}
# What needs PyTorch or Python, without which no compiler can read it.
_PYTHON = re.compile(r"\b(?:torch|c10|pybind11|PYBIND11_MODULE|TORCH_\w+|namespace at)\b|\bat\s*::")
_HOST = re.compile(
    r"<<<|\bcuda(?:Malloc|Memcpy|Memset|Free|Device|Stream|Event|Get|Launch|Func|Set|Error)\w*"
    r"|\bstd\s*::\s*(?:cout|cerr|endl|vector|string|map|chrono|unique_ptr|shared_ptr)\b"
)
# Declarations inside these are declarations of the file.
_TRANSPARENT = ("namespace_definition", "linkage_specification")


@dataclass(frozen=True)
class HostPiece:
    """A declaration of host code, or the `#include` of a header for it."""

    start: int
    end: int
    name: str = ""
    """Of a function; "" of anything else."""
    tokens: frozenset[str] = frozenset()
    is_host: bool = True
    """Whether it launches a kernel, or uses PyTorch, CUDA's API or what no device has of the C++ library."""
    needs_python: bool = False
    node: Node | None = None


@functools.lru_cache(maxsize=64)
def host_code(text: str) -> tuple[HostPiece, ...]:
    """The pieces of a file that are host code: what launches or uses PyTorch or CUDA's API, and what uses that."""
    plain = syntax.without_comments(text)
    pieces = [piece for piece in map(_piece, _declarations(syntax.parse(plain))) if not piece.tokens & _ON_DEVICE]
    found = [piece for piece in pieces if piece.is_host]
    found += _users(pieces, found, {"main"})
    headers = [include.span() for include in syntax.includes(text, plain) if _HEADERS.match(include[1])]
    return tuple(sorted((*found, *(HostPiece(*span) for span in headers)), key=lambda piece: piece.start))


@functools.lru_cache(maxsize=64)
def launching_functions(text: str) -> Mapping[str, DeclaredFunction]:
    """The functions of a file that launch kernels, neither templates nor members nor overloaded, by name."""
    functions = [piece for piece in _compiled(text) if any(nodes(piece.node, "function_definition"))]
    names = [piece.name for piece in functions]
    single = [piece for piece in functions if names.count(piece.name) == 1]
    launching = [piece for piece in single if "<<<" in piece.tokens]
    launching += _users(single, launching)
    found = (syntax.declared_function(piece.node) for piece in launching if piece.node is not None)
    return {function.name: function for function in found if function is not None}


def with_launches(text: str) -> str:
    """The text with its host code, each `<<<...>>>` a call; spaces for what needs PyTorch or Python, and for `main`."""
    kept, original = _compiled(text), text
    text = _without(text, [piece for piece in host_code(text) if piece not in kept])
    calls = [call for piece in kept for call in nodes(piece.node, "call_expression")]
    for call in sorted(calls, key=lambda node: -node.start_byte):
        sizes = next((child for child in call.children if child.type == "kernel_call_syntax"), None)
        if sizes is not None:
            kernel = original[call.start_byte : sizes.start_byte]
            given = original[sizes.start_byte + len("<<<") : sizes.end_byte - len(">>>")]
            launch = f'gp_launching("{" ".join(kernel.split())}", &{kernel}, {given})'
            text = text[: call.start_byte] + launch + text[sizes.end_byte :]
    return text


def _without(text: str, pieces: Iterable[HostPiece]) -> str:
    """The text with spaces for some pieces."""
    for piece in pieces:
        text = syntax.blank(text, piece.start, piece.end)
    return text


def _compiled(text: str) -> list[HostPiece]:
    """The host code that g++ can run: what uses neither PyTorch nor Python nor a function that does."""
    pieces = [piece for piece in host_code(text) if piece.node is not None]
    out = [piece for piece in pieces if piece.name == "main" or piece.needs_python]
    out += _users(pieces, out)
    return [piece for piece in pieces if piece not in out]


def _users(pieces: Collection[HostPiece], used: Collection[HostPiece], names: Collection[str] = ()) -> list[HostPiece]:
    """The other pieces that name one of those, or one of some names, directly or through others."""
    found: list[HostPiece] = []
    known = {*names, *(piece.name for piece in used)} - {""}
    while new := [piece for piece in pieces if piece.tokens & known and piece not in (*used, *found)]:
        found += new
        known |= {piece.name for piece in new} - {""}
    return found


def _declarations(root: Node) -> Iterator[Node]:
    """The declarations of a file and of its namespaces."""
    for node in root.named_children:
        body = node.child_by_field_name("body") if node.type in _TRANSPARENT else None
        if body is not None and body.type == "declaration_list":
            yield from _declarations(body)
        else:
            yield node


def _piece(node: Node) -> HostPiece:
    after = node.next_sibling
    end = after.end_byte if after is not None and after.type == ";" else node.end_byte
    tokens = frozenset(map(node_text, syntax.leaves(node)))
    text = node_text(node)
    needs_python = _PYTHON.search(text) is not None
    is_host = needs_python or _HOST.search(text) is not None
    named = node.children[-1] if node.type == "template_declaration" else node
    is_alias = named.type == "alias_declaration"
    name = named.child_by_field_name("name") if is_alias else syntax.declared_name(syntax.function_in(named))
    return HostPiece(node.start_byte, end, node_text(name), tokens, is_host, needs_python, node)
