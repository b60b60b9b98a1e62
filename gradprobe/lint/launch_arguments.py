"""Where the host launched a kernel, and which piece of its source gave each argument."""

from __future__ import annotations

import ast
import contextlib
import inspect
import linecache
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from ..source.text import PythonSource, SourceLine, python_source
from ..source.triton_source import Function, read_once
from .cuda import CudaKernel, kernel_of

if TYPE_CHECKING:
    from torch import Tensor

    from ..cuda.kernel import KernelEntry

PACKAGE = Path(__file__).resolve().parents[1]
# What of this package is a host like any other.
_HOSTS = (PACKAGE / "kernels", PACKAGE / "targets")


@dataclass(frozen=True)
class HostArgument:
    """One argument of a launch in the host's source."""

    spot: SourceLine
    text: str
    """What it is: "q.stride(1)", also where `*q.stride()` stands there."""


@dataclass(frozen=True)
class HostLaunch:
    """One launch."""

    function: Function | CudaKernel
    arguments: Mapping[str, Any]
    """What each parameter was given, or has by default."""
    constants: frozenset[str] = frozenset()
    """The parameters under tl.constexpr."""
    spot: SourceLine | None = None
    """Where the host's call begins; None where its source cannot be read."""
    given: Mapping[str, HostArgument] = field(default_factory=dict)
    """The arguments in the host's source by parameter, as far as that tells them."""

    @property
    def name(self) -> str:
        return self.function.name


def host_frame() -> FrameType | None:
    """The innermost frame of Python that belongs neither to Triton, nor to torch, nor to this tool."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not _is_host(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


@lru_cache(maxsize=256)
def _is_host(name: str) -> bool:
    file = Path(name).resolve()
    own = file.is_relative_to(PACKAGE) and not any(file.is_relative_to(folder.resolve()) for folder in _HOSTS)
    libraries = (getattr(sys.modules.get(library), "__file__", None) for library in ("torch", "triton"))
    foreign = any(file.is_relative_to(Path(library).resolve().parent) for library in libraries if library)
    return not own and not foreign and not name.startswith("<") and os.path.exists(name)


def _in_source(
    frame: FrameType, parameters: Sequence[str], count: int
) -> tuple[SourceLine | None, dict[str, HostArgument]]:
    """The call of a frame's current line that launches a kernel: where it begins, and its arguments.

    Args:
        count: how many arguments were given by position.
    """
    name = frame.f_code.co_filename
    linecache.checkcache(name)
    source = python_source(str(Path(name).resolve()), "".join(linecache.getlines(name)))
    calls = [node for node in _calls(source) if node.lineno <= frame.f_lineno <= (node.end_lineno or 0)]
    launches = [node for node in calls if isinstance(node.func, ast.Subscript)] or calls
    if not launches:
        return None, {}
    call = max(launches, key=lambda node: (node.lineno, node.col_offset))
    arguments = _Arguments(source, frame, call)
    given = {name: each for name, each in zip(parameters, arguments.by_position(count), strict=False) if each}
    given |= {word.arg: arguments.given(word.value) for word in call.keywords if word.arg}
    return arguments.given(call.func).spot, given


@lru_cache(maxsize=64)
def _calls(source: PythonSource) -> tuple[ast.Call, ...]:
    with contextlib.suppress(SyntaxError):
        return tuple(node for node in ast.walk(source.tree) if isinstance(node, ast.Call))
    return ()


@dataclass(frozen=True)
class _Arguments:
    """What the arguments of a call are in the text of a host."""

    source: PythonSource
    frame: FrameType
    call: ast.Call

    def given(self, node: ast.expr, text: str = "") -> HostArgument:
        return HostArgument(self.source.line_of(node, self.frame.f_code.co_name), text or ast.unparse(node))

    def by_position(self, count: int) -> list[HostArgument | None]:
        """The positional arguments, of which those between starred ones of unknown lengths are None."""
        pieces = list(self._flat(self.call.args))
        unknown = [at for at, piece in enumerate(pieces) if piece is None]
        if unknown:
            pieces[unknown[0] : unknown[-1] + 1] = [None] * max(count - len(pieces) + unknown[-1] + 1 - unknown[0], 0)
        return pieces

    def _flat(self, nodes: Sequence[ast.expr]) -> Iterator[HostArgument | None]:
        for node in nodes:
            starred = self._assigned(node.value) if isinstance(node, ast.Starred) else None
            if not isinstance(node, ast.Starred):
                yield self.given(node)
            elif isinstance(starred, (ast.Tuple, ast.List)):
                yield from self._flat(starred.elts)
            elif (value := self._value(node.value)) is None:
                yield None
            else:
                text, is_call = ast.unparse(node.value), isinstance(node.value, ast.Call)
                for at in range(len(value)):
                    yield self.given(node.value, f"{text[:-1]}{at})" if is_call else f"{text}[{at}]")

    def _assigned(self, node: ast.expr) -> ast.expr | None:
        """What was last assigned to a name before the call; anything but a name is itself."""
        if not isinstance(node, ast.Name):
            return node
        around = next((each for each in self.source.above(self.call) if isinstance(each, ast.FunctionDef)), None)
        body = (around or self.source.tree).body
        nodes = (each for statement in body for each in ast.walk(statement) if isinstance(each, ast.Assign))
        before = [each for each in nodes if each.lineno < self.call.lineno]
        names = ((each, getattr(target, "id", "")) for each in before for target in each.targets)
        return next(reversed([each.value for each, name in names if name == node.id]), None)

    def _value(self, node: ast.expr) -> Any:
        """What a name or `name.stride()` is, with `[a:b]` behind it or not: nothing of the user's is called."""
        import torch

        match node:
            case ast.Subscript(value=of, slice=ast.Slice(lower=lower, upper=upper)):
                whole, ends = self._value(of), (lower, upper)
                first, last = (end.value if isinstance(end, ast.Constant) else None for end in ends)
                return None if whole is None else whole[first:last]
            case ast.Name(id=name):
                found = self.frame.f_locals.get(name)
                return found if isinstance(found, (tuple, list)) else None
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="stride" | "size" as word), args=[]):
                tensor = self.frame.f_locals.get(name)
                return getattr(tensor, word)() if isinstance(tensor, torch.Tensor) else None
        return None


def tensor_in(value: Any) -> Tensor | None:
    """The tensor that an argument is, or that a descriptor describes."""
    import torch

    value = getattr(value, "base", value)
    return value if isinstance(value, torch.Tensor) else None


def launch_of(jit: Any, positional: tuple[Any, ...], words: Mapping[str, Any]) -> HostLaunch | None:
    """A launch of a Triton kernel from the innermost frame of the host; None where its source cannot be read."""
    frame = host_frame()
    try:
        function = read_once(jit)
    except (OSError, SyntaxError):
        return None
    specs = inspect.signature(jit.fn).parameters
    given = dict(zip(specs, positional, strict=False))
    given |= {name: value for name, value in words.items() if name in specs}  # without num_warps and the like
    values = {name: given.get(name, spec.default) for name, spec in specs.items()}
    arguments = {name: value for name, value in values.items() if value is not inspect.Parameter.empty}
    constants = frozenset(name for name, spec in specs.items() if "constexpr" in str(spec.annotation))
    spot, of_source = _in_source(frame, list(specs), len(positional)) if frame is not None else (None, {})
    return HostLaunch(function, arguments, constants, spot, of_source)


def cuda_launch(entry: KernelEntry, arguments: Sequence[Any]) -> HostLaunch:
    """A launch of a CUDA kernel, at the host's current line: of its arguments nothing is asked."""
    kernel, frame, spot = kernel_of(entry), host_frame(), None
    if frame is not None:
        name, line = frame.f_code.co_filename, frame.f_lineno
        linecache.checkcache(name)
        code = linecache.getline(name, line).strip()
        spot = SourceLine(str(Path(name).resolve()), line, code, 0, len(code), frame.f_code.co_name)
    return HostLaunch(kernel, dict(zip(kernel.parameters, arguments, strict=True)), spot=spot)
