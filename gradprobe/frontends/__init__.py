"""A folder for each language that targets are written in; what is known of one elsewhere is its LANGUAGE, as below."""

from __future__ import annotations

import contextlib
import functools
import importlib
import pkgutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from ..inputs.memory import Unwritten
    from ..model.memory_finding import MemoryFinding

# What runs kernels. Where a target has kernels of two, the first of these words is the report's.
CUDA_ON_CPU, CUDA, INTERPRETED, COMPILED = "cuda-on-cpu", "cuda", "triton-interpreter", "triton"
BACKENDS = (CUDA_ON_CPU, CUDA, INTERPRETED, COMPILED)
TORCH = "torch"
"""The word of what launches no kernel of its own."""


@dataclass(frozen=True)
class Launch:
    """A kernel that was started."""

    entry: Any
    """A function of Python, or the kernel of a source."""
    backend: str
    """Of BACKENDS."""
    storages: Collection[int] = ()
    """The memory that it was given, as `storage_of` numbers it."""
    call: Any = None
    """A Triton kernel's arguments."""


@dataclass
class Launches:
    """What a call of a function starts, in every language."""

    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    """What the caller knows by name."""
    schedule: int = 0
    """The order of threads and blocks on a CPU; 0: that of their numbers."""
    unwritten: Unwritten | None = None
    """The memory that is known to have no value yet."""
    after: Callable[[str], None] = lambda kernel: None
    """Told of each kernel after its launch."""
    started: list[Launch] = field(default_factory=list)
    findings: list[MemoryFinding] = field(default_factory=list)
    """What they did wrong to memory."""
    notes: list[str] = field(default_factory=list)
    compiled: set[Any] = field(default_factory=set)
    """What kernels were compiled to."""


class Statements:
    """The statements of a file. Each function gives numbers of lines, the last first; none that the language hides.

    Those of a line are those that make
        masks: the condition of its `where`, or the `mask=` of its access;
        address: the address of its access: that move its pointer, and the indices they use;
        aliases: what it uses from another name alone, such as a pointer that is not moved;
        loops: the loops that it stands in, or that make what it uses;
        ends: where the innermost loop around it begins and ends, and the loop's own.
    """

    def __init__(self, file: str) -> None:
        self.file = file

    def masks(self, line: int, *, of_accesses: bool = True) -> Iterable[int]:
        return ()

    def address(self, line: int) -> Iterable[int]:
        return ()

    aliases = loops = ends = address

    def grids(self, kernel: str) -> Iterable[int]:
        """Those of a kernel's launches, and those that make what their grids use."""
        return ()

    def launches_with(self, line: int) -> Iterable[int]:
        """Those of the launches, in the same function, that are given what a line of host code assigns."""
        return ()

    def function_at(self, line: int) -> str:
        """The name of the innermost function that holds a line; "" where none is known."""
        return ""


class Language:
    """One language. What a folder leaves out is as here: nothing is known of it."""

    suffixes: tuple[str, ...] = ()
    """Of the files that are its own."""

    def launches(self, found: Launches) -> AbstractContextManager[None]:
        """While open, what is started is noted, and what it did wrong."""
        return contextlib.nullcontext()

    def source(self, file: str) -> Statements:
        """The functions and statements of a file."""
        return Statements(file)


@functools.cache
def languages() -> tuple[Language, ...]:
    """The LANGUAGE of each folder."""
    folders = [found.name for found in pkgutil.iter_modules(__path__) if found.ispkg]
    return tuple(importlib.import_module(f"{__name__}.{name}").LANGUAGE for name in sorted(folders))


@contextlib.contextmanager
def launches(found: Launches) -> Iterator[Launches]:
    """While open, what is started is noted, in whatever language."""
    with contextlib.ExitStack() as stack:
        for language in languages():
            stack.enter_context(language.launches(found))
        yield found


def source(file: str) -> Statements:
    """The statements of a file."""
    language = next((each for each in languages() if file.endswith(each.suffixes)), Language())
    return language.source(file)
