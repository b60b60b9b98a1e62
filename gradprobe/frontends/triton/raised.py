"""What stood where a target raised: the line, in a kernel or around it, its variables, and which are the case's."""

from __future__ import annotations

import ast
import builtins
import difflib
import linecache
import re
import sys
from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from ...model.case import Case
from ...model.failures import text_of
from ...processes.attributes import replaced
from ...processes.ended import EndedLine, is_users
from . import interpreting

# Lines further out that are told too, variables of a line, and letters of a value and of code.
_OUTER, _VARIABLES, _LETTERS, _CODE = 3, 8, 40, 100
_SIDE_BY_SIDE = "--heads times --head-dim"


@dataclass(frozen=True)
class _Step:
    """A line of the user's that was running, and what its names mean there."""

    place: EndedLine
    scope: Mapping[str, Any]
    is_compiled: bool = False
    """Whether it was being compiled, and its names have types and no values."""


def whole_tracebacks() -> AbstractContextManager[None]:
    """While open, Triton's compiler leaves its own frames in tracebacks, which hold the types of a kernel's names."""
    compiler = sys.modules.get("triton.compiler.compiler")
    return nullcontext() if compiler is None else replaced(compiler, "filter_traceback", lambda error: None)


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


def stood_there(error: BaseException, case: Case) -> tuple[str, ...]:
    """Lines for a person: the innermost line of the user's, its variables, and what called it.

    Nothing where no line of the user's is known, or where a variable of it breaks whoever looks at it.
    """
    try:
        return tuple(_explanation(error, case))
    except Exception:  # of objects of the target's own making; the message stands without
        return ()


def _explanation(error: BaseException, case: Case) -> Sequence[str]:
    steps = list(_steps(error))
    if not steps:
        return ()
    *outer, inner = steps
    place, names = inner.place, _names(inner.place)
    values = [told for name in names if name in inner.scope and (told := _value(name, inner.scope[name], case))]
    called = [step.place.sentence for step in reversed(outer)]
    code = [f"    {place.code}"] if place.code else []
    variables = [f"    {told}" for told in values[:_VARIABLES]]
    head = f"{place.sentence.removesuffix(f': {place.code}')}{_program(error)}"
    return head, *code, *variables, *called[:_OUTER], *_remarks(error, inner, case)


def _steps(error: BaseException) -> Iterator[_Step]:
    """From the outside in: of what called the kernel, of the kernel, and of what the kernel calls."""
    told: set[int] = set()
    for each in _chain(error):
        for frame, line in _frames(each.__traceback__):
            generator = frame.f_locals.get("self")
            if {"lscope", "begin_line"} <= getattr(generator, "__dict__", {}).keys():  # what compiles a kernel
                if id(generator) not in told:
                    told.add(id(generator))
                    yield from _of_compiler(generator)
            elif is_users(frame.f_code.co_filename) and id(frame) not in told:
                told.add(id(frame))
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


def _names(place: EndedLine) -> list[str]:
    """The names of the statement at a line, as they are read; of one that holds others, those of the line alone."""
    try:
        tree = ast.parse("".join(linecache.getlines(place.file)))
    except (SyntaxError, ValueError):
        return []
    statements = [node for node in ast.walk(tree) if isinstance(node, ast.stmt)]
    holding = [node for node in statements if node.lineno <= place.line <= (node.end_lineno or 0)]
    if not holding:
        return []
    statement = max(holding, key=lambda node: node.lineno)
    is_one = not hasattr(statement, "body")
    found = [node for node in ast.walk(statement) if isinstance(node, ast.Name)]
    read = [one for one in found if isinstance(one.ctx, ast.Load) and (is_one or one.lineno == place.line)]
    return list(dict.fromkeys(one.id for one in sorted(read, key=lambda one: (one.lineno, one.col_offset))))


def _value(name: str, value: Any, case: Case) -> str:
    """`offs int32[32]`, `HEAD = 24 (as --head-dim)`; of a kernel what it takes; "" of what says nothing."""
    names = getattr(value, "arg_names", None)
    if names is not None:
        return f"{name}({', '.join(map(str, names))})"
    plain = _plain(value)
    if isinstance(plain, (bool, int, float, str, type(None))):
        options = _options_of(plain, case)
        return f"{name} = {_cut(repr(plain), _LETTERS)}" + (f" (as {options[0]})" if len(options) == 1 else "")
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
    is_number = not getattr(value, "shape", None) and getattr(data, "size", 0) == 1 and data.dtype.kind in "biuf"
    is_pointer = "pointer" in str(getattr(value, "dtype", ""))
    if not is_number or is_pointer:
        return value
    is_bf16 = str(value.dtype) == "bf16"  # of which the interpreter keeps the bits
    return (data.astype("uint32") << 16).view("float32").item() if is_bf16 else data.item()


def _options_of(value: object, case: Case) -> list[str]:
    """What of the case is so large: a size, or all heads of a row side by side."""
    sizes = {
        "--batch": case.batch, "--heads": case.heads, "--kv-heads": case.kv_heads, "--seqlen-q": case.seqlen_q,
        "--seqlen-k": case.seqlen_k, "--head-dim": case.head_dim, "--head-dim-v": case.head_dim_v,
        _SIDE_BY_SIDE: case.heads * case.head_dim,
    }  # fmt: skip
    alike = {"--kv-heads": "--heads", "--seqlen-k": "--seqlen-q", "--head-dim-v": "--head-dim"}
    found = [option for option, size in sizes.items() if size == value and type(value) is int and value > 1]
    left = [option for option in found if alike.get(option) not in found]
    return ["--seqlen" if one == "--seqlen-q" and case.seqlen_q == case.seqlen_k else one for one in left]


def _program(error: BaseException) -> str:
    """Of a kernel in the interpreter, which of its programs it was."""
    builder = getattr(sys.modules.get("triton.runtime.interpreter"), "interpreter_builder", None)
    at = getattr(builder, "grid_idx", None)
    is_interpreters = type(error).__name__ == "InterpreterError" and interpreting()
    return f", program {tuple(map(int, at))}" if is_interpreters and at is not None else ""


def _remarks(error: BaseException, step: _Step, case: Case) -> Iterator[str]:
    """What follows from the line for the case, or for a name that nobody knows."""
    innermost = list(_chain(error))[-1]
    words = str(getattr(innermost, "error_message", None) or innermost)
    values = (_plain(step.scope[name]) for name in _names(step.place) if name in step.scope)
    for number in sorted({one for one in values if isinstance(one, int) and one & (one - 1)}):
        options = _options_of(number, case) if "power of 2" in words or "power of two" in words else []
        if len(options) == 1 and options[0] != _SIDE_BY_SIDE:
            yield f"{number} is no power of two; with {options[0]} {1 << number.bit_length()} it is one"
        elif options:
            yield f"{number} is no power of two; it may be {' or '.join(options)}"
    unknown = [name for name in _names(step.place) if name not in step.scope and not hasattr(builtins, name)]
    for name in (name for name in unknown if re.search(rf"\b{name}\b", words)):
        if close := difflib.get_close_matches(name, [*step.scope], 1):
            yield f"did you mean {close[0]}?"
