"""A .cu file as it was read: its text, what it includes, its host code, and the kernels that it declares."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...model.failures import TargetFailure
from .cuda_syntax import (
    DeclaredFunction,
    declarators,
    declared_function,
    declared_name,
    declared_type,
    directives,
    has,
    includes,
    node_text,
    nodes,
    parse,
    without_comments,
)
from .host import host_code, without_pieces

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
        """The names of its kernels that are no templates."""
        return tuple(name for name, kernel in self.declared.items() if not kernel.is_template)

    def dynamic_array_of(self, kernel: str) -> str:
        """The name of its `extern __shared__` array: its own, else that of one in the file; "" where there is none."""
        roots = [self.declared[kernel].node] if kernel in self.declared else []
        return next((node_text(name) for root in (*roots, *self.trees) for name in _dynamic(root)), "")

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
        every = nodes(parse(self.plain), "function_definition", "declaration")
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


def _dynamic(root: Node) -> Iterator[Node]:
    """The names of the `extern __shared__` arrays under a node."""
    for node in nodes(root, "declaration"):
        if has(node, "extern") and has(node, "__shared__"):
            yield from (name for each in declarators(node) if (name := declared_name(each)) is not None)


def _scopes(node: Node) -> list[str]:
    """The namespaces around a node, the outermost first."""
    found: list[str] = []
    around = node.parent
    while around is not None:
        if around.type == "namespace_definition":
            name = node_text(around.child_by_field_name("name")) or _ANONYMOUS
            found = [*name.replace(" ", "").split("::"), *found]
        around = around.parent
    return found
