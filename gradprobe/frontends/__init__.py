"""A folder for each language of targets."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from ..inputs.memory import UnwrittenElements
    from ..model.memory_finding import MemoryFinding

# What runs kernels. Where a target has kernels of two, the first of these words is the report's.
CUDA_ON_CPU, CUDA, INTERPRETED, COMPILED = "cuda-on-cpu", "cuda", "triton-interpreter", "triton"
BACKENDS = (CUDA_ON_CPU, CUDA, INTERPRETED, COMPILED)
TORCH = "torch"  # of what launches no kernel of its own


@dataclass(frozen=True)
class Launch:
    entry: Any  # a function of Python, or a CUDA kernel
    backend: str  # of BACKENDS
    storages: Collection[int] = ()  # that it was given, as `home_of` numbers them
    call: Any = None  # a Triton kernel's arguments


def _unwritten() -> UnwrittenElements:
    from ..inputs.memory import UnwrittenElements

    return UnwrittenElements()


@dataclass
class Launches:
    # Those that the caller knows.
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    # The order of threads and blocks on a CPU; 0: that of their numbers.
    schedule: int = 0
    # The memory that has no value yet.
    unwritten: UnwrittenElements = field(default_factory=_unwritten)
    # Told of the tensors of each CUDA kernel before its launch on a CPU.
    before: Callable[[Mapping[str, Tensor]], None] = lambda tensors: None
    # Told of each kernel after its launch.
    after: Callable[[str], None] = lambda kernel: None
    # Those of CUDA kernels on a CPU, a Recorded for each launch, where they are wanted.
    accesses: list[Any] | None = None
    started: list[Launch] = field(default_factory=list)
    findings: list[MemoryFinding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    compiled: set[Any] = field(default_factory=set)


# Those that notice what is started now.
OPEN: ContextVar[Launches | None] = ContextVar("gradprobe_launches", default=None)


class Statements:
    """By a line's number others, the last first: of its mask, of what moves its pointer, of copies of names that it
    uses, of loops that make what it uses, and of how far the innermost goes."""

    def __init__(self, file: str) -> None:
        self.file = file

    def masks(self, line: int, *, of_accesses: bool = True) -> Iterable[int]:
        return ()

    def address(self, line: int) -> Iterable[int]:
        return ()

    aliases = loops = ends = launches_with = address

    def grids(self, kernel: str) -> Iterable[int]:
        return ()

    def function_at(self, line: int) -> str:
        return ""


@contextlib.contextmanager
def launches(found: Launches) -> Iterator[None]:
    from .triton.launches import recorded_launches

    token = OPEN.set(found)
    try:
        with recorded_launches(found):
            yield
    finally:
        OPEN.reset(token)


def source(file: str) -> Statements:
    if file.endswith(".py"):
        from .python.statements import PythonStatements

        return PythonStatements(file)
    if file.endswith((".cu", ".cuh", ".h", ".hpp")):
        from .cuda.cuda_syntax import CudaStatements

        return CudaStatements(file)
    return Statements(file)


@contextlib.contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """While open, an attribute has another value; what was put on top meanwhile stays."""
    is_own, original = name in vars(owner), getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if getattr(owner, name) is value:
            setattr(owner, name, original) if is_own else delattr(owner, name)


def plain_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function inside wrappers, partials and callable objects."""
    plain = inspect.unwrap(getattr(function, "fn", function))
    while isinstance(plain, functools.partial):
        plain = inspect.unwrap(plain.func)
    return plain if inspect.isroutine(plain) or inspect.isclass(plain) else type(plain).__call__
