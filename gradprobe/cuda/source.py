"""A .cu file as it was read: its text, what it includes, its host code, and the kernels that it declares."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..model.failures import TargetFailure
from ..source.cuda_syntax import (
    above,
    blank,
    declarators,
    declared_name,
    directives,
    has,
    includes,
    layers,
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
_NAMESPACES = {"torch", "at", "c10", "pybind11"}
_STANDARD = {"cout", "cerr", "endl", "vector", "string", "map", "chrono", "unique_ptr", "shared_ptr"}
# Declarations inside these are declarations of the file.
_TRANSPARENT = ("namespace_definition", "linkage_specification")
_BINDING = re.compile(r"PYBIND11_MODULE|TORCH_\w+")
_API = re.compile(
    rf"{_BINDING.pattern}|cuda(?:Malloc|Memcpy|Memset|Free|Device|Stream|Event|Get|Launch|Func|Set|Error)\w*"
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
    pieces = [piece for piece in map(_Declaration, _declarations(parse(plain))) if not piece.tokens & _ON_DEVICE]
    found: list[_Declaration] = []
    calls = {"main"}
    while new := [piece for piece in pieces if piece not in found and (piece.is_host or piece.tokens & calls)]:
        found += new
        calls |= {piece.name for piece in new} - {""}
    of_host = (include for include in includes(text, plain) if _HEADERS.match(include[1]))
    headers = [LeftOut(include.start(), include.end(), include[0].strip()) for include in of_host]
    if not found and not any("/" in header.name or "Python" in header.name for header in headers):
        return ()
    return tuple(sorted((*headers, *(piece.left_out for piece in found)), key=lambda one: one.start))


def needs_python(plain: str) -> bool:
    """Whether code uses PyTorch or Python, without which no compiler can read it."""
    root = parse(plain)
    scopes = {node_text(node) for node in nodes(root, "namespace_identifier")}
    return bool(scopes & _NAMESPACES) or any(_BINDING.fullmatch(node_text(leaf)) for leaf in leaves(root))


class _Declaration:
    """A declaration or definition of a file or of one of its namespaces."""

    def __init__(self, parts: Sequence[Node]) -> None:
        self.left_out = LeftOut(parts[0].start_byte, parts[-1].end_byte, _name(parts[0]))
        self.name = self.left_out.name
        self.tokens = {node_text(leaf) for leaf in leaves(parts[0])}
        self._node = parts[0]

    @property
    def is_host(self) -> bool:
        """Whether it launches a kernel, or uses PyTorch or the CUDA runtime."""
        if "<<<" in self.tokens or any(map(_API.fullmatch, self.tokens)):
            return True
        scopes = {node_text(node) for node in nodes(self._node, "namespace_identifier")}
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
        return node_text(node.child_by_field_name("name"))
    function = next((each for top in declarators(node) for each in nodes(top, "function_declarator")), None)
    return node_text(declared_name(function))


# As g++ calls it.
_ANONYMOUS = "_GLOBAL__N_1"
_LAUNCH = "a launch <<<...>>> is host code: leave it out here, and launch from Python"
_PTX = "inline PTX is not supported on a CPU"
_GROUPS = "cooperative groups are not supported on a CPU"
_MARKS = {"pointer_declarator": "*", "reference_declarator": "&", "array_declarator": "["}
# What only nvcc or a GPU can make something of.
_NOT_ON_A_CPU = {
    "<<<": _LAUNCH,
    "asm": _PTX,
    "__asm__": _PTX,
    "cooperative_groups": _GROUPS,
    "wmma": "matrix instructions (wmma) are not supported on a CPU",
    "__managed__": "__managed__ variables are not supported on a CPU",
}


@dataclass(frozen=True)
class Parameter:
    """A parameter of a kernel as it is written."""

    name: str
    type: str
    """Without qualifiers: "float*", "long long"."""


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
    def host(self) -> tuple[LeftOut, ...]:
        """What of the text is host code, which is left out."""
        return host_code(self.text, without_comments(self.text))

    @functools.cached_property
    def of_kernels(self) -> str:
        """The text with spaces for host code."""
        return functools.reduce(lambda text, one: blank(text, one.start, one.end), self.host, self.text)

    @functools.cached_property
    def left_out(self) -> str:
        """What is left out, with its lines; "" where nothing is."""
        told = []
        for one in self.host:
            first, last = (self.text.count("\n", 0, at) + 1 for at in (one.start, one.end))
            lines = f"line {first}" if first == last else f"lines {first} to {last}"
            told.append(f"{lines} ({one.name})" if one.name else lines)
        return f"{self.path.name}: host code is left out: {', '.join(told)}" if told else ""

    @functools.cached_property
    def plain(self) -> str:
        """Without comments, strings, host code and what `#if` leaves out; every other character in its place."""
        return without_comments(self.of_kernels)

    @functools.cached_property
    def everything(self) -> str:
        """That, and what is included."""
        return "\n".join((*(without_comments(text) for _, text in self.included), self.plain))

    @property
    def kernels(self) -> dict[str, tuple[Parameter, ...]]:
        """The parameters of each kernel that is no template, by name."""
        return {name: kernel.parameters for name, kernel in self._found.items() if not kernel.is_template}

    @property
    def templates(self) -> dict[str, tuple[Parameter, ...]]:
        """Those of each kernel that is a template."""
        return {name: kernel.parameters for name, kernel in self._found.items() if kernel.is_template}

    def body_of(self, kernel: str) -> Node | None:
        """The statements of a kernel, as a node of the syntax tree; None where it is only declared."""
        return self._found[kernel].node.child_by_field_name("body")

    @functools.cached_property
    def dynamic_arrays(self) -> tuple[str, ...]:
        """The names of its `extern __shared__` arrays."""
        return tuple(dict.fromkeys(node_text(name) for root in self.trees for name in _dynamic(root)))

    @functools.cached_property
    def dynamic_symbols(self) -> tuple[str, ...]:
        """What the linker calls them: those that a function in a namespace declares belong to it."""
        names = [(*_scopes(name), node_text(name)) for root in self.trees for name in _dynamic(root)]
        mangled = ("".join(f"{len(part)}{part}" for part in parts) for parts in names)
        return tuple(
            dict.fromkeys(f"_ZN{many}E" if one[1:] else one[0] for one, many in zip(names, mangled, strict=True))
        )

    def dynamic_array_of(self, kernel: str) -> str:
        """The name that a kernel has for its dynamic shared memory: its own, else one of a function that it calls."""
        own = _dynamic(self._found[kernel].node) if kernel in self._found else ()
        return next(map(node_text, own), next(iter(self.dynamic_arrays), ""))

    @functools.cached_property
    def namespaces(self) -> tuple[str, ...]:
        """Those in which kernels stand, "outer::inner"; not the anonymous one, whose names need no prefix."""
        scopes = [[name for name in _scopes(kernel.node) if name != _ANONYMOUS] for kernel in self._found.values()]
        return tuple(dict.fromkeys("::".join(names) for names in scopes if names))

    @functools.cached_property
    def shared_types(self) -> dict[str, str]:
        """What shared arrays are declared as, by name; those of one name and two types are left out."""
        found: dict[str, set[str]] = {}
        for declaration in (node for root in self.trees for node in nodes(root, "declaration")):
            for declarator in declarators(declaration) if has(declaration, "__shared__") else ():
                found.setdefault(node_text(declared_name(declarator)), set()).add(_type(declaration, declarator))
        return {name: types.pop() for name, types in found.items() if len(types) == 1}

    def line_of(self, kernel: str) -> int:
        """The line in which a kernel's name stands."""
        return declared_line(self._found[kernel].declarator) if kernel in self._found else 1

    def line_of_function(self, name: str) -> int:
        """The line in which a function is defined; 0 where there is none of this name."""
        defined = nodes(parse(self.plain), "function_definition")
        found = [next(iter(nodes(node, "function_declarator")), None) for node in defined]
        named = (one for one in found if one is not None and node_text(declared_name(one)) == name)
        return next(map(declared_line, named), 0)

    def unsupported_on_a_cpu(self) -> str:
        """The first line that cannot run on a CPU, and why; "" where there is none."""
        found = []
        for token in leaves(parse(self.plain)):
            word = (
                "cooperative_groups"
                if token.type == "namespace_identifier" and node_text(token) == "cg"
                else node_text(token)
            )
            found += [(token.start_byte, _NOT_ON_A_CPU[word])] if word in _NOT_ON_A_CPU else []
        macros = (line for line in directives(self.plain) if line[1] == "define")
        found += [(line.start(), _PTX) for line in macros if "asm" in re.findall(r"\w+", line[2])]
        at, why = min(found, default=(0, ""))
        return f"{self.path.name}:{self.plain.count(chr(10), 0, at) + 1}: {why}" if why else ""

    @functools.cached_property
    def trees(self) -> tuple[Node, ...]:
        """Of what is included, then of the file."""
        return (*(parse(without_comments(text)) for _, text in self.included), parse(self.plain))

    @functools.cached_property
    def _found(self) -> dict[str, _Kernel]:
        """The kernels by name; the last declaration of each counts."""
        found = map(_kernel, nodes(parse(self.plain), "function_definition", "declaration"))
        return {node_text(declared_name(kernel.declarator)): kernel for kernel in found if kernel is not None}


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


@dataclass(frozen=True)
class _Kernel:
    """A declaration or definition of a kernel."""

    node: Node
    declarator: Node
    is_template: bool
    parameters: tuple[Parameter, ...]


def _kernel(node: Node) -> _Kernel | None:
    """The kernel that a declaration declares; None for anything else, and for one instance of a template."""
    function = next((each for top in declarators(node) for each in nodes(top, "function_declarator")), None)
    name = function.child_by_field_name("declarator") if function is not None and has(node, "__global__") else None
    if function is None or name is None or name.type != "identifier":
        return None
    given = function.child_by_field_name("parameters")
    taken = given.named_children if given is not None and node_text(given) != "(void)" else ()
    parameters = tuple(map(declared_parameter, taken))
    is_template = node.parent is not None and node.parent.type == "template_declaration"
    return _Kernel(node, function, is_template, parameters)


def declared_parameter(node: Node) -> Parameter:
    """A parameter of a function, from its declaration."""
    declarator = node.child_by_field_name("declarator")
    return Parameter(node_text(declared_name(declarator)), _type(node, declarator))


def declared_line(function: Node) -> int:
    """The line in which a declared name stands."""
    return (declared_name(function) or function).start_point[0] + 1


def _type(declaration: Node, declarator: Node | None) -> str:
    """The type of what is declared, without qualifiers; an array is a pointer if it is a parameter."""
    kind = declaration.child_by_field_name("type")
    named = kind.child_by_field_name("name") if kind is not None and kind.type == "struct_specifier" else None
    marks = "".join(_MARKS.get(layer.type.removeprefix("abstract_"), "") for layer in layers(declarator))
    return node_text(named or kind) + marks.replace("[", "" if declaration.type == "declaration" else "*")


def _dynamic(root: Node) -> Iterator[Node]:
    """The names of the `extern __shared__` arrays under a node."""
    for node in nodes(root, "declaration"):
        if has(node, "extern") and has(node, "__shared__"):
            yield from (name for each in declarators(node) if (name := declared_name(each)) is not None)


def _scopes(node: Node) -> tuple[str, ...]:
    """The namespaces around a node, the outermost first."""
    around = [
        node_text(each.child_by_field_name("name")) for each in above(node) if each.type == "namespace_definition"
    ]
    return tuple(part for name in reversed(around) for part in (name or _ANONYMOUS).replace(" ", "").split("::"))
