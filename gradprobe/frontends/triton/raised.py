"""What stood where a target raised: the line, in a kernel or around it, its variables, and what called it."""

from __future__ import annotations

import linecache
import re
import sys
from collections import ChainMap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from ...model.failures import text_of
from ...processes.ended import EndedLine, is_users
from . import interpreting

# Lines further out that are told too, variables of a line, and letters of a value and of code.
_OUTER, _VARIABLES, _LETTERS, _CODE = 3, 8, 40, 100


@dataclass(frozen=True)
class _Step:
    """A line of the user's that was running, and what its names mean there."""

    place: EndedLine
    scope: Mapping[str, Any]
    is_compiled: bool = False
    """Whether it was being compiled, and its names have types and no values."""


@dataclass(frozen=True)
class CompilerPlace:
    """Where a compiler refused a kernel, and what it said."""

    line: EndedLine
    words: str


def compiler_place(error: BaseException) -> CompilerPlace | None:
    """The innermost line that was being compiled; None of what no compiler raised."""
    compiled = [step for step in _steps(error) if step.is_compiled]
    steps = [step for step in compiled if is_users(step.place.file)] or compiled  # else in the language itself
    if not steps:
        return None
    place, inner = steps[-1].place, list(_chain(error))[-1]
    words = getattr(inner, "error_message", None) or ("" if hasattr(inner, "node") else text_of(inner)) or place.code
    raised = inner.__context__
    return CompilerPlace(place, text_of(raised) if raised is not None and words == repr(raised) else words)


def compiler_words(error: BaseException) -> str:
    """`attention.py:17: input and other must have equal reduction dimensions`; "" of what no compiler raised."""
    found = compiler_place(error)
    return "" if found is None else f"{Path(found.line.file).name}:{found.line.line}: {found.words}"


def innermost_line(error: BaseException) -> EndedLine | None:
    """The innermost line of the user's that was running; None where none is known."""
    steps = list(_steps(error))
    return steps[-1].place if steps else None


def stood_there(error: BaseException) -> tuple[str, ...]:
    """Lines for a person: the innermost line of the user's, its variables, and what called it.

    Nothing where no line of the user's is known, or where a variable of it breaks whoever looks at it.
    """
    try:
        steps = list(_steps(error))
        return tuple(_explanation(steps, _program(error))) if steps else ()
    except Exception:  # of objects of the target's own making; the message stands without
        return ()


def _explanation(steps: list[_Step], program: str) -> Iterator[str]:
    *outer, inner = steps
    place = inner.place
    yield place.sentence.removesuffix(f": {place.code}") + program
    if place.code:
        yield f"    {place.code}"
    names = dict.fromkeys(re.findall(r"(?<![\w.])[A-Za-z_]\w*", place.code))
    values = filter(None, [_value(name, inner.scope[name]) for name in names if name in inner.scope])
    yield from [f"    {value}" for value in values][:_VARIABLES]
    yield from [step.place.sentence for step in reversed(outer)][:_OUTER]


def _steps(error: BaseException) -> Iterator[_Step]:
    """From the outside in: of what called the kernel, of the kernel, and of what the kernel calls."""
    passed: set[int] = set()
    for trace in (each.__traceback__ for each in _chain(error)):
        for frame, line in _frames(trace):
            generator = frame.f_locals.get("self")  # what compiles a kernel
            compiles = {"lscope", "begin_line"} <= getattr(generator, "__dict__", {}).keys()
            key = id(generator if compiles else frame)
            if key in passed:
                continue
            passed.add(key)
            if compiles:
                yield from _of_compiler(generator)
            elif is_users(frame.f_code.co_filename):
                place = _line(frame.f_code.co_filename, line, frame.f_code.co_name)
                yield _Step(place, ChainMap(frame.f_locals, frame.f_globals))


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error, and what Triton wrapped in it."""
    inner: BaseException | None = error
    while inner is not None:
        yield inner
        inner = inner.__cause__ if type(inner).__module__.partition(".")[0] == "triton" else None


def _frames(trace: TracebackType | None) -> Iterator[tuple[Any, int]]:
    while trace is not None:
        yield trace.tb_frame, trace.tb_lineno
        trace = trace.tb_next


def _of_compiler(generator: Any) -> Iterator[_Step]:
    node: Any = getattr(generator, "cur_node", None)
    file = getattr(generator, "file_name", None)
    if hasattr(node, "lineno") and file:
        place = _line(file, generator.begin_line + node.lineno, generator.jit_fn.fn.__name__)
        yield _Step(place, ChainMap(generator.lscope, generator.gscope), is_compiled=True)


def _line(file: str, line: int, function: str) -> EndedLine:
    return EndedLine(file, line, function, _cut(linecache.getline(file, line).strip(), _CODE))


def _value(name: str, value: Any) -> str:
    """`offs int32[32]`, `HEAD = 24`; of a kernel what it takes; "" of what says nothing."""
    if (names := getattr(value, "arg_names", None)) is not None:
        return f"{name}({', '.join(map(str, names))})"
    plain = _plain(value)
    if isinstance(plain, (bool, int, float, str, type(None))):
        return f"{name} = {_cut(repr(plain), _LETTERS)}"
    shape, dtype = getattr(plain, "shape", None), getattr(plain, "dtype", None)
    if shape is None or dtype is None:
        return ""
    sizes = [_plain(size) for size in shape]
    return f"{name} {str(dtype).removeprefix('torch.')}{sizes or ''}"


def _cut(words: str, most: int) -> str:
    return words if len(words) <= most else f"{words[:most]}..."


def _plain(value: Any) -> Any:
    """The number of a constant, or of a scalar in the interpreter; else the value itself."""
    if type(value).__name__ == "constexpr":
        return value.value
    data: Any = getattr(getattr(value, "handle", None), "data", None)
    is_number = not getattr(value, "shape", None) and getattr(data, "size", 0) == 1 and data.dtype.kind in "bif"
    return data.item() if is_number else value  # pointers are unsigned, and the bits of bfloat16 too


def _program(error: BaseException) -> str:
    """Of a kernel in the interpreter, which of its programs it was."""
    builder = getattr(sys.modules.get("triton.runtime.interpreter"), "interpreter_builder", None)
    at = getattr(builder, "grid_idx", None)
    is_interpreters = type(error).__name__ == "InterpreterError" and interpreting()
    return f", program {tuple(map(int, at))}" if is_interpreters and at is not None else ""
