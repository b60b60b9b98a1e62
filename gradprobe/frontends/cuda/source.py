"""A .cu file as it was read: its text, what it includes, its kernels, and its host code, with its text for g++."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from ...model.failures import TargetFailure
from . import cuda_syntax as syntax
from .cuda_syntax import Declaration, DeclaredFunction, node_text, nodes

if TYPE_CHECKING:
    from tree_sitter import Node

# What only nvcc or a GPU can make something of.
_ON_A_GPU = {"<<<": "a launch <<<...>>> in a kernel", "asm": "inline PTX"}
_ON_A_GPU |= {"cooperative_groups": "cooperative groups", "wmma": "matrix instructions (wmma)"}
_NAMES_ON_A_GPU = re.compile(r"<<<|\b(?:asm|__asm__|cooperative_groups|wmma)\b")
# Headers of PyTorch and of Python, and those of the C++ library that no device code can use.
_HEADERS = re.compile(
    r"(?:torch|ATen|c10|pybind11)/"
    r"|(?:Python|iostream|fstream|sstream|iomanip|vector|string|map|memory|chrono|random)(?:\.h)?$"
)
_ON_DEVICE = {"__global__", "__device__", "__constant__", "__shared__"}
# What needs PyTorch or Python, without which no compiler can read it.
_PYTHON = re.compile(r"\b(?:torch|c10|pybind11|PYBIND11_MODULE|TORCH_\w+|namespace at)\b|\bat\s*::")
_HOST = re.compile(
    r"<<<|\bcuda(?:Malloc|Memcpy|Memset|Free|Device|Stream|Event|Get|Launch|Func|Set|Error)\w*"
    r"|\bstd\s*::\s*(?:cout|cerr|endl|vector|string|map|chrono|unique_ptr|shared_ptr)\b"
)


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

    @cached_property
    def sha256(self) -> str:
        """Of the file alone."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    @cached_property
    def of_kernels(self) -> str:
        """The text with spaces for host code."""
        return self._without(self._host)

    @cached_property
    def plain(self) -> str:
        """Without comments, strings, host code and what `#if` leaves out; every other character in its place."""
        return syntax.without_comments(self.of_kernels)

    @cached_property
    def texts(self) -> tuple[str, ...]:
        """So of what is included, then that."""
        return (*(syntax.without_comments(text) for _, text in self.included), self.plain)

    @cached_property
    def aliases(self) -> Mapping[str, str]:
        """The types behind its macros and aliases. Options of the compiler override macros."""
        text = "\n".join(self.texts)
        found = dict(re.findall(r"^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+([\w ]+?)[ \t]*$", text, re.MULTILINE))
        found |= dict(re.findall(r"\busing\s+(\w+)\s*=\s*([\w ]+?)\s*;", text))
        for kind, name in re.findall(r"\btypedef\s+([\w ]+?)\s+(\w+)\s*;", text):
            found[name] = kind
        return found | dict(self.defines)

    @cached_property
    def granule(self) -> int:
        """The bytes of the smallest element that its shared memory can hold."""
        words = " ".join([*self.texts, *dict(self.defines).values()])
        if re.search(r"\b(?:bool|u?char|u?int8_t)\b", words):
            return 1
        return 2 if re.search(r"half|bfloat16|\bu?short\b|int16_t", words) else 4

    # --- Kernels

    @cached_property
    def declared(self) -> dict[str, DeclaredFunction]:
        """The kernels by name; the last declaration of each counts."""
        found = {}
        for node in nodes(syntax.parse(self.plain), "function_definition", "declaration"):
            kernel = syntax.declared_function(node) if syntax.has(node, "__global__") else None
            if kernel is not None:
                found[kernel.name] = kernel
        return found

    @property
    def kernels(self) -> tuple[str, ...]:
        """The names of those that are no templates."""
        return tuple(name for name, kernel in self.declared.items() if not kernel.is_template)

    @cached_property
    def namespaces(self) -> tuple[str, ...]:
        """Those in which kernels stand, "outer::inner"; the anonymous one needs no name."""
        found = set[str]()
        for kernel in self.declared.values():
            node, names = kernel.node, list[str]()
            while node is not None:
                if node.type == "namespace_definition":
                    names.insert(0, node_text(node.child_by_field_name("name")).replace(" ", ""))
                node = node.parent
            found.add("::".join(filter(None, names)))
        return tuple(sorted(found - {""}))

    def dynamic_array_of(self, kernel: str) -> str:
        """The name of its `extern __shared__` array: its own, else that of one in the file; "" where there is none."""
        found = [*_shared_arrays(self.declared[kernel].node), *self._shared]
        return next((array.name for array, is_dynamic in found if is_dynamic), "")

    @cached_property
    def shared_types(self) -> dict[str, str]:
        """What shared arrays are declared as, by name; "void" of those of one name and two types."""
        found: dict[str, str] = {}
        for array, _ in self._shared:
            is_same = found.get(array.name, array.type) == array.type
            found[array.name] = array.type if is_same else "void"
        return found

    @cached_property
    def _shared(self) -> list[tuple[Declaration, bool]]:
        return [found for text in self.texts for found in _shared_arrays(syntax.parse(text))]

    def unsupported_on_a_cpu(self) -> str:
        """The first line that cannot run on a CPU, and why; "" where there is none."""
        for found in _NAMES_ON_A_GPU.finditer(self.plain):
            name = found[0].strip("_")
            # Of macros a kernel may use those with PTX; a launch in one is the host's.
            if name == "asm" or not syntax.is_directive(self.plain, found.start()):
                line = self.plain.count("\n", 0, found.start()) + 1
                return f"{self.path.name}:{line}: {_ON_A_GPU[name]}"
        return ""

    # --- Host code: what launches, or uses PyTorch or CUDA's API, and what uses that

    @cached_property
    def _host(self) -> list[HostPiece]:
        root = syntax.parse(syntax.without_comments(self.text))
        pieces = [piece for piece in _pieces(root) if not piece.tokens & _ON_DEVICE]
        return _with_users(pieces, [piece for piece in pieces if _HOST.search(piece.text) or piece.needs_python])

    @cached_property
    def _compiled(self) -> list[HostPiece]:
        """The host code that g++ can run: what uses neither PyTorch nor Python nor a function that does."""
        out = _with_users(self._host, [piece for piece in self._host if piece.needs_python])
        return [piece for piece in self._host if piece not in out]

    def _without(self, pieces: Iterable[HostPiece]) -> str:
        """The text with spaces for some pieces, and for headers of the host."""
        spans = [(piece.node.start_byte, piece.end) for piece in pieces]
        spans += [found.span() for found in syntax.includes(self.text) if _HEADERS.match(found[1])]
        text = self.text
        for start, end in spans:
            text = syntax.blank(text, start, end)
        return text

    @cached_property
    def launchers(self) -> Mapping[str, DeclaredFunction]:
        """The functions of the host that launch kernels, neither templates nor members nor overloaded, by name."""
        functions = [piece for piece in self._compiled if any(nodes(piece.node, "function_definition"))]
        names = [piece.name for piece in functions]
        functions = [piece for piece in functions if names.count(piece.name) == 1]
        launching = _with_users(functions, [piece for piece in functions if "<<<" in piece.tokens])
        found = [syntax.declared_function(piece.node) for piece in launching]
        plain = [function for function in found if function is not None]
        return {function.name: function for function in sorted(plain, key=lambda function: function.line)}

    @cached_property
    def with_launches(self) -> str:
        """The text with its host code, each `<<<...>>>` a call; spaces for what needs Python, and for `main`."""
        text = self._without([piece for piece in self._host if piece not in self._compiled])
        calls = [sizes for piece in self._compiled for sizes in nodes(piece.node, "kernel_call_syntax")]
        for sizes in sorted(calls, key=lambda node: -node.start_byte):
            call = sizes.parent
            assert call is not None
            kernel = self.text[call.start_byte : sizes.start_byte]
            given = self.text[sizes.start_byte + len("<<<") : sizes.end_byte - len(">>>")]
            launch = f'gp_launching("{" ".join(kernel.split())}", &{kernel}, {given})'
            text = text[: call.start_byte] + launch + text[sizes.end_byte :]
        return text


@dataclass(frozen=True)
class KernelEntry:
    """One kernel of a source, or one instance of a template."""

    source: CudaSource
    name: str
    parameters: tuple[Declaration, ...]

    @property
    def file(self) -> Path:
        return self.source.path

    @property
    def line(self) -> int:
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
        for include in syntax.includes(content):
            for folder in (file.parent, path.parent, *map(Path, folders)):
                other = (folder / include[1]).resolve()
                if other.is_file():
                    if other not in (path, *found):
                        found[other] = other.read_text(encoding="utf-8", errors="replace")
                        waiting.append((other, found[other]))
                    break
    return tuple(sorted(found.items()))


def _shared_arrays(root: Node | None) -> Iterator[tuple[Declaration, bool]]:
    """Each shared array that is declared under a node, and whether the launch says its size."""
    for declaration in nodes(root, "declaration"):
        if syntax.has(declaration, "__shared__"):
            for array in syntax.declared(declaration):
                yield array, syntax.has(declaration, "extern")


_ERROR = re.compile(r"^([^\s:(][^:(\n]*)(?::(\d+)(?::\d+)?:|\((\d+)\):) (?:\w+ )?error(?: #\S+)?: (.*)$", re.MULTILINE)
_BRACE = re.compile(r"^(\S[^:\n]*):(\d+):\d+: note: to match this '\{'$", re.MULTILINE)
_MOST_ERRORS = 3


def compile_errors(printed: str) -> str:
    """The first errors that g++ or NVRTC prints, with the lines of the file."""
    errors = dict[str, None]()
    for file, line in _BRACE.findall(printed):
        errors[f"{Path(file).name}:{line}: a brace is opened here and not closed"] = None
    for file, line, other_line, words in _ERROR.findall(printed):
        errors[f"{Path(file).name}:{line or other_line}: {words}"] = None
    return "; ".join([*errors][:_MOST_ERRORS]) or printed.strip()[-500:]


# --- Host code


@dataclass(frozen=True)
class HostPiece:
    """A declaration of a file."""

    node: Node
    end: int
    name: str
    """Of a function or an alias; "" of anything else."""
    text: str
    tokens: frozenset[str]

    @property
    def needs_python(self) -> bool:
        return self.name == "main" or _PYTHON.search(self.text) is not None


def _pieces(root: Node) -> Iterator[HostPiece]:
    """The declarations of a file and of its namespaces."""
    for node in root.named_children:
        body = node.child_by_field_name("body")
        if body is not None and body.type == "declaration_list":
            yield from _pieces(body)
            continue
        after = node.next_sibling
        end = after.end_byte if after is not None and after.type == ";" else node.end_byte
        named = node.children[-1] if node.type == "template_declaration" else node
        name = named if named.type == "alias_declaration" else syntax.function_name(named)
        while name is not None and (inner := name.child_by_field_name("name")) is not None:
            name = inner  # of `scope::name` and of `name<int>`
        tokens = frozenset(map(node_text, syntax.leaves(node))) - {""}
        yield HostPiece(node, end, node_text(name), node_text(node), tokens)


def _with_users(pieces: Iterable[HostPiece], used: Iterable[HostPiece]) -> list[HostPiece]:
    """Those that are used, and those that name one of them, directly or through others."""
    found, waiting = [*used], list(pieces)
    names = {piece.name for piece in found}
    while new := [piece for piece in waiting if piece not in found and piece.tokens & names]:
        found += new
        names |= {piece.name for piece in new}
    return found
