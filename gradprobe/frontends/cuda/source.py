"""A .cu file as it was read, and its text for each compiler."""

from __future__ import annotations

import functools
import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from ...model.failures import TargetFailure
from . import cuda_syntax as syntax
from .cuda_syntax import Declaration, DeclaredFunction, node_text, nodes

if TYPE_CHECKING:
    from tree_sitter import Node

# What only nvcc or a GPU can make something of.
_ON_A_GPU = {
    "asm": "inline PTX", "__asm__": "inline PTX", "cooperative_groups": "cooperative groups",
    "wmma": "matrix instructions (wmma)", "<<<": "a launch <<<...>>> in a kernel",
}  # fmt: skip
# Headers of PyTorch and of Python, and those of the C++ library that no device code can use.
_HEADERS = (
    r"(?:torch|ATen|c10|pybind11)/"
    r"|(?:Python|iostream|fstream|sstream|iomanip|vector|string|map|memory|chrono|random)(?:\.h)?$"
)
_ON_DEVICE = {"__global__", "__device__", "__constant__", "__shared__"}
# What needs PyTorch or Python, without which no compiler can read it, and the host's own program.
_PYTHON = r"\b(?:torch|c10|pybind11|PYBIND11_MODULE|TORCH_\w+|namespace at)\b|\bat\s*::|^[\w ]*\bmain ?\("
_HOST = (
    r"<<<|\bcuda(?!Texture|Surface)[A-Z]"
    r"|\bstd\s*::\s*(?:cout|cerr|endl|vector|string|map|chrono|unique_ptr|shared_ptr)\b"
)
_ALIASES = (
    r"(?m)^[ \t]*#[ \t]*define[ \t]+(?P<name>\w+)[ \t]+(?P<type>[\w ]+?)[ \t]*$",
    r"\busing\s+(?P<name>\w+)\s*=\s*(?P<type>[\w ]+?)\s*;",
    r"\btypedef\s+(?P<type>[\w ]+?)\s+(?P<name>\w+)\s*;",
)


@dataclass(frozen=True)
class CudaSource:
    path: Path
    text: str
    included: tuple[tuple[Path, str], ...]
    defines: tuple[tuple[str, str], ...]
    folders: tuple[str, ...]  # where it includes from, besides its own

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    @cached_property
    def of_kernels(self) -> str:
        return self._without([*self._host[0], *self._host[1]])

    @cached_property
    def plain(self) -> str:
        return syntax.without_comments(self.of_kernels)

    @cached_property
    def _whole(self) -> str:
        included = [syntax.without_comments(text) for _, text in self.included]
        return "\n".join([*included, self.plain])

    @cached_property
    def aliases(self) -> Mapping[str, str]:
        found = dict[str, str]()
        for each in chain(*(re.finditer(pattern, self._whole) for pattern in _ALIASES)):
            found[each["name"]] = each["type"]
        return found | dict(self.defines)

    @cached_property
    def granule(self) -> int:
        words = " ".join([self._whole, *dict(self.defines).values()])
        if re.search(r"\b(?:bool|u?char|u?int8_t)\b", words):
            return 1
        return 2 if re.search(r"half|bfloat16|\bu?short\b|int16_t", words) else 4

    # --- Kernels

    @cached_property
    def declared(self) -> dict[str, DeclaredFunction]:
        found = {}
        for node in nodes(syntax.parse(self.plain), "function_definition", "declaration"):
            if syntax.has(node, "__global__") and (kernel := syntax.declared_function(node)):
                found[kernel.name] = kernel
        return found

    def kernels(self, instance: str = "") -> list[str]:
        plain = [name for name, kernel in self.declared.items() if not kernel.is_template]
        return [*plain, instance] if instance else plain

    @cached_property
    def using(self) -> str:
        found = set[str]()
        for kernel in self.declared.values():
            node, names = kernel.node.parent, list[str]()
            while node is not None:
                if node.type == "namespace_definition":
                    names[:0] = filter(None, [node_text(node.child_by_field_name("name"))])
                node = node.parent
            found |= {f"using namespace {'::'.join(names)};\n"} if names else set()
        return "".join(sorted(found))

    def dynamic_array_of(self, kernel: str) -> str:
        arrays = [*_shared_arrays(self.declared[kernel].node), *self._shared]
        return next((array.name for array, is_extern in arrays if is_extern), "")

    def shared_type(self, name: str) -> str:
        types = {array.type for array, _ in self._shared if array.name == name}
        return types.pop() if len(types) == 1 else "void"

    @cached_property
    def _shared(self) -> list[tuple[Declaration, bool]]:
        return [*_shared_arrays(syntax.parse(self._whole))]

    def unsupported_on_a_cpu(self) -> str:
        # Of macros a kernel may use those with PTX; a launch in one is the host's.
        texts = self.plain, syntax.without_directives(self.plain)
        for number, (line, code) in enumerate(zip(*map(str.splitlines, texts), strict=True), 1):
            words = re.findall(r"<<<|\w+", code) + re.findall(r"\b(?:__)?asm(?:__)?\b", line)
            for word in filter(_ON_A_GPU.__contains__, words):
                return f"{self.path.name}:{number}: {_ON_A_GPU[word]}"
        return ""

    # --- Host code

    @cached_property
    def _host(self) -> tuple[list[HostPiece], list[HostPiece]]:
        root = syntax.parse(syntax.without_comments(self.text))
        pieces = [piece for piece in _pieces(root) if not piece.tokens & _ON_DEVICE]
        python = _with_users(pieces, _PYTHON)
        return [piece for piece in _with_users(pieces, _HOST) if piece not in python], python

    def _without(self, pieces: Iterable[HostPiece]) -> str:
        text, spans = self.text, [(each.node.start_byte, each.node.end_byte) for each in pieces]
        for found in syntax.includes(text):
            spans += [found.span()] if re.match(_HEADERS, found[1]) else []
        for start, end in spans:
            text = text[:start] + syntax.blank(text[start:end]) + text[end:]
        return text

    @cached_property
    def launchers(self) -> Mapping[str, DeclaredFunction]:
        defined, found = list[HostPiece](), dict[str, DeclaredFunction]()
        for piece in self._host[0]:
            defined += [piece] if any(nodes(piece.node, "function_definition")) else []
        many = Counter(piece.name for piece in defined)
        for piece in _with_users([each for each in defined if many[each.name] == 1], "<<<"):
            if function := syntax.declared_function(piece.node):
                found[function.name] = function
        return found

    @cached_property
    def with_launches(self) -> str:
        compiled, python = self._host
        text = self._without(python)
        calls = [nodes(piece.node, "kernel_call_syntax") for piece in compiled]
        for sizes in reversed([*chain(*calls)]):
            start, end = sizes.start_byte, sizes.end_byte
            first = sizes.parent.start_byte if sizes.parent is not None else 0
            kernel, given = self.text[first:start], self.text[start + 3 : end - 3]
            launch = f'gp_launching("{" ".join(kernel.split())}", &{kernel}, {given})'
            text = text[:first] + launch + text[end:]
        return text


@dataclass(frozen=True)
class KernelEntry:
    source: CudaSource
    name: str  # with the arguments of a template
    function: DeclaredFunction

    @property
    def instance(self) -> str:
        return self.name if self.function.is_template else ""


def read_source(
    path: Path, folders: Sequence[str] = (), defines: Mapping[str, str] | None = None
) -> CudaSource:
    what = f"cannot read the CUDA source {path}"
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise TargetFailure(f"{what}: {error}", "is the path right?") from error
    if chr(0) in text:
        raise TargetFailure(f"{what}: it is not text", "g++ and NVRTC read UTF-8")
    path, macros = path.resolve(), tuple(sorted((defines or {}).items()))
    included = _included(path, text, [*map(Path, folders)])
    return _cuda_source(path, text, included, macros, tuple(folders))


_cuda_source = functools.lru_cache(maxsize=64)(CudaSource)


def _included(path: Path, text: str, folders: Sequence[Path]) -> tuple[tuple[Path, str], ...]:
    found, reading = dict[Path, str](), [(path, text)]
    for file, read in reading:
        for include in syntax.includes(read):
            places = [folder / include[1] for folder in (file.parent, path.parent, *folders)]
            other = next(filter(Path.is_file, places), path).resolve()
            if other not in (path, *found):
                found[other] = other.read_text(encoding="utf-8", errors="replace")
                reading.append((other, found[other]))
    return tuple(sorted(found.items()))


def _shared_arrays(root: Node) -> Iterator[tuple[Declaration, bool]]:
    for declaration in nodes(root, "declaration"):
        if syntax.has(declaration, "__shared__"):
            for array in syntax.declared(declaration):
                yield array, syntax.has(declaration, "extern")


_ERROR = re.compile(
    r"(?m)^([^\s:(][^:(\n]*)(?::(\d+)(?::\d+)?:|\((\d+)\):) (?:\w+ )?error(?: #\S+)?: (.*)$"
)


def compile_errors(printed: str) -> str:
    errors = dict[str, None]()
    for file, line, other_line, words in _ERROR.findall(printed):
        errors[f"{Path(file).name}:{line or other_line}: {words}"] = None
    return "; ".join([*errors][:3]) or printed.strip()[-500:]


@dataclass(frozen=True, eq=False)
class HostPiece:
    node: Node
    name: str
    text: str
    tokens: set[str]


def _pieces(root: Node) -> Iterator[HostPiece]:
    for node in root.named_children:
        body = node.child_by_field_name("body")
        if body is not None and body.type == "declaration_list":
            yield from _pieces(body)
            continue
        named = node.children[-1] if node.type == "template_declaration" else node
        name = named if named.type == "alias_declaration" else syntax.function_name(named)
        while name is not None and (inner := name.child_by_field_name("name")) is not None:
            name = inner  # of `scope::name` and of `name<int>`
        yield HostPiece(node, node_text(name), node_text(node), syntax.tokens(node))


def _with_users(pieces: Sequence[HostPiece], pattern: str) -> list[HostPiece]:
    found = [piece for piece in pieces if re.search(pattern, piece.text)]
    for piece in found:
        found += [user for user in pieces if piece.name in user.tokens and user not in found]
    return [piece for piece in pieces if piece in found]
