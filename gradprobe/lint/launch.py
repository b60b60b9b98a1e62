"""Site: where the host launched a kernel, and which piece of its source gave each argument."""

from __future__ import annotations

import ast
import inspect
import linecache
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import FrameType
from typing import Any

from ..source.python_source import PythonSource, python_source
from ..source.text import SourceLine
from ..source.triton import Function, is_assigned
from .cuda import CudaKernel

PACKAGE = Path(__file__).resolve().parents[1]
# What of this package is a host like any other.
_HOSTS = (PACKAGE / "kernels", PACKAGE / "targets")


@dataclass(frozen=True)
class Given:
    """One argument of a launch in the host's source."""

    spot: SourceLine
    text: str
    """What it is: "q.stride(1)", also where `*q.stride()` stands there."""


@dataclass(frozen=True)
class Site:
    """One call that launches a kernel."""

    spot: SourceLine
    """Of the call's beginning."""
    positional: tuple[Given | None, ...]
    """The arguments by position; None where the source does not tell."""
    words: Mapping[str, Given]
    """Those that are named."""

    def given(self, parameter: str, parameters: Sequence[str]) -> Given | None:
        """What a parameter was given; None where the source does not tell."""
        at = parameters.index(parameter)
        positional = self.positional[at] if at < len(self.positional) else None
        return self.words.get(parameter, positional)


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
    foreign = any(file.is_relative_to(folder) for folder in _libraries())
    return not own and not foreign and not name.startswith("<") and os.path.exists(name)


@lru_cache(maxsize=1)
def _libraries() -> tuple[Path, ...]:
    files = [getattr(sys.modules.get(name), "__file__", None) for name in ("torch", "triton")]
    return tuple(Path(file).resolve().parent for file in files if file)


def site_of(frame: FrameType, positional: int) -> Site | None:
    """The call of a frame's current line that launches a kernel.

    Args:
        positional: how many positional arguments the launch had.
    """
    name = frame.f_code.co_filename
    linecache.checkcache(name)
    source = python_source(str(Path(name).resolve()), "".join(linecache.getlines(name)))
    calls = [node for node in _calls(source) if node.lineno <= frame.f_lineno <= (node.end_lineno or 0)]
    launches = [node for node in calls if isinstance(node.func, ast.Subscript)] or calls
    if not launches:
        return None
    call = max(launches, key=lambda node: (node.lineno, node.col_offset))
    arguments = _Arguments(source, frame, call)
    words = {word.arg: arguments.given(word.value) for word in call.keywords if word.arg}
    return Site(arguments.given(call.func).spot, arguments.by_position(positional), words)


def line_of(frame: FrameType) -> Site:
    """A frame's current line, where nothing is asked of its arguments."""
    name = frame.f_code.co_filename
    linecache.checkcache(name)
    code = linecache.getline(name, frame.f_lineno).strip()
    spot = SourceLine(str(Path(name).resolve()), frame.f_lineno, code, 0, len(code), frame.f_code.co_name)
    return Site(spot, (), {})


@lru_cache(maxsize=64)
def _calls(source: PythonSource) -> tuple[ast.Call, ...]:
    try:
        return tuple(node for node in ast.walk(source.tree) if isinstance(node, ast.Call))
    except SyntaxError:
        return ()


@dataclass(frozen=True)
class _Arguments:
    """What the arguments of a call are in the text of a host."""

    source: PythonSource
    frame: FrameType
    call: ast.Call

    def given(self, node: ast.expr, text: str = "") -> Given:
        return Given(self.source.line_of(node, self.frame.f_code.co_name), text or ast.unparse(node))

    def by_position(self, count: int) -> tuple[Given | None, ...]:
        """The positional arguments, of which those between starred ones of unknown lengths are None."""
        pieces = list(self._flat(self.call.args))
        unknown = [at for at, piece in enumerate(pieces) if piece is None]
        if not unknown:
            return tuple(pieces)
        before, behind = pieces[: unknown[0]], pieces[unknown[-1] + 1 :]
        return (*before, *[None] * max(count - len(before) - len(behind), 0), *behind)

    def _flat(self, nodes: Sequence[ast.expr]) -> Iterator[Given | None]:
        for node in nodes:
            if isinstance(node, ast.Starred):
                yield from self._starred(node.value)
            else:
                yield self.given(node)

    def _starred(self, node: ast.expr) -> Iterator[Given | None]:
        if isinstance(node, (ast.Tuple, ast.List)):
            yield from self._flat(node.elts)
        elif isinstance(node, ast.Name) and (assigned := self._assigned(node)) is not None:
            yield from self._flat(assigned.elts)
        elif (value := self._value(node)) is None:
            yield None
        else:
            is_stride = isinstance(node, ast.Call)
            text = ast.unparse(node)
            for at in range(len(value)):
                yield self.given(node, f"{text[:-1]}{at})" if is_stride else f"{text}[{at}]")

    def _assigned(self, name: ast.Name) -> ast.Tuple | ast.List | None:
        """The tuple that was last assigned to a name before the call."""
        around = next((node for node in self.source.above(self.call) if isinstance(node, ast.FunctionDef)), None)
        body = (around or self.source.tree).body
        nodes = (node for statement in body for node in ast.walk(statement) if isinstance(node, ast.Assign))
        found = [node.value for node in nodes if node.lineno < self.call.lineno and is_assigned(name.id, node)]
        value = found[-1] if found else None
        return value if isinstance(value, (ast.Tuple, ast.List)) else None

    def _value(self, node: ast.expr) -> Any:
        """What a name or `name.stride()` is, with `[a:b]` behind it or not: nothing of the user's is called."""
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice):
            whole = self._value(node.value)
            ends = [
                end.value if isinstance(end, ast.Constant) else None for end in (node.slice.lower, node.slice.upper)
            ]
            return None if whole is None else whole[ends[0] : ends[1]]
        if isinstance(node, ast.Name):
            found = self.frame.f_locals.get(node.id)
            return found if isinstance(found, (tuple, list)) else None
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and not node.args:
            return self._method(node.func)
        return None

    def _method(self, func: ast.Attribute) -> Any:
        """What `name.stride()` or `name.size()` gives, where the name is a tensor's."""
        import torch

        found = self.frame.f_locals.get(func.value.id) if isinstance(func.value, ast.Name) else None
        is_asked = isinstance(found, torch.Tensor) and func.attr in ("stride", "size")
        return getattr(found, func.attr)() if is_asked else None


@dataclass(frozen=True)
class Launch:
    """One launch."""

    function: Function | CudaKernel
    arguments: Mapping[str, Any]
    """What each parameter was given, or has by default."""
    constants: frozenset[str]
    """The parameters under tl.constexpr."""
    site: Site | None
    """Where the host launched it; None where its source cannot be read."""

    @property
    def name(self) -> str:
        return self.function.name


def bound(jit: Any, positional: tuple[Any, ...], words: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a launch by parameter; what is no parameter (num_warps) is left out."""
    parameters = inspect.signature(jit.fn).parameters
    given = {name: spec.default for name, spec in parameters.items() if spec.default is not spec.empty}
    given |= dict(zip(parameters, positional, strict=False))
    return given | {name: value for name, value in words.items() if name in parameters}


def constants_of(jit: Any) -> frozenset[str]:
    """The parameters of a Triton function that are under tl.constexpr."""
    specs = inspect.signature(jit.fn).parameters
    return frozenset(name for name, spec in specs.items() if "constexpr" in str(spec.annotation))
