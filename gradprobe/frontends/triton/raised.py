"""Where a target raised: the innermost line of the user's, in a kernel or around it, its values, and its caller."""

from __future__ import annotations

import linecache
import re
import traceback
from collections import ChainMap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ...model.failures import text_of
from ...processes.ended import EndedLine, is_users

# Letters of a line and of a value.
_CODE, _LETTERS = 100, 40


@dataclass(frozen=True)
class RaisedLine:
    """A line that was running, or being compiled, when something raised."""

    place: EndedLine
    names: Mapping[str, Any]
    """What its names mean there; of a line that was being compiled, types without values."""
    is_compiled: bool = False


def compiler_place(error: BaseException) -> tuple[EndedLine, str] | None:
    """The innermost line that was being compiled, and what the compiler says; None of what no compiler raised."""
    compiled = [line for line in _lines(error) if line.is_compiled]
    users = [line for line in compiled if is_users(line.place.file)]
    if not compiled:
        return None
    place = (users or compiled)[-1].place  # else in the language itself
    *_, inner = _chain(error)
    words = getattr(inner, "error_message", None) or ("" if hasattr(inner, "node") else text_of(inner))
    raised = inner.__context__
    if raised is not None and words == repr(raised):
        words = text_of(raised)
    return place, words or place.code


def innermost_line(error: BaseException) -> EndedLine | None:
    """The innermost line of the user's that was running; None where none is known."""
    lines = _lines(error)
    return lines[-1].place if lines else None


def stood_there(error: BaseException) -> tuple[str, ...]:
    """Lines for a person: the innermost line of the user's, its values, and what called it.

    Nothing where no line of the user's is known, or where a variable of it breaks whoever looks at it.
    """
    try:
        lines = _lines(error)
        return tuple(_explanation(lines[-1], lines[-2:-1])) if lines else ()
    except Exception:  # of objects of the target's own making; the message stands without
        return ()


def _explanation(line: RaisedLine, callers: list[RaisedLine]) -> Iterator[str]:
    place = line.place
    yield place.sentence.removesuffix(f": {place.code}")
    if place.code:
        yield f"    {place.code}"
    for name in dict.fromkeys(re.findall(r"(?<![\w.])[A-Za-z_]\w*", place.code)):
        if name in line.names and (value := _value(name, line.names[name])):
            yield f"    {value}"
    for caller in callers:
        yield caller.place.sentence


def _lines(error: BaseException) -> list[RaisedLine]:
    """From the outside in: of what called the kernel, of the kernel, and of what the kernel calls."""
    found: dict[int, RaisedLine] = {}
    for each in _chain(error):
        for frame, number in traceback.walk_tb(each.__traceback__):
            code = frame.f_code
            generator: Any = frame.f_locals.get("self")
            if {"lscope", "begin_line"} <= getattr(generator, "__dict__", {}).keys():  # what compiles a kernel
                node: Any = getattr(generator, "cur_node", None)
                if hasattr(node, "lineno") and id(generator) not in found:
                    file, first = generator.file_name, generator.begin_line
                    place = _line(file, first + node.lineno, generator.jit_fn.fn.__name__)
                    found[id(generator)] = RaisedLine(place, ChainMap(generator.lscope, generator.gscope), True)
            elif is_users(code.co_filename) and id(frame) not in found:
                place = _line(code.co_filename, number, code.co_name)
                found[id(frame)] = RaisedLine(place, ChainMap(frame.f_locals, frame.f_globals))
    return list(found.values())


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error, and what Triton wrapped in it."""
    inner: BaseException | None = error
    while inner is not None:
        yield inner
        inner = inner.__cause__ if type(inner).__module__.partition(".")[0] == "triton" else None


def _line(file: str, line: int, function: str) -> EndedLine:
    return EndedLine(file, line, function, _cut(linecache.getline(file, line).strip(), _CODE))


def _value(name: str, value: Any) -> str:
    """`offs int32[32]`, `HEAD = 24`; "" of what says nothing."""
    value = _plain(value)
    if isinstance(value, (bool, int, float, str, type(None))):
        return f"{name} = {_cut(repr(value), _LETTERS)}"
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if shape is None or dtype is None:
        return ""
    sizes = [_plain(size) for size in shape]
    return f"{name} {str(dtype).removeprefix('torch.')}{sizes or ''}"


def _plain(value: Any) -> Any:
    """The number of a constant of the language; else the value itself."""
    return value.value if type(value).__name__ == "constexpr" else value


def _cut(words: str, most: int) -> str:
    return words if len(words) <= most else f"{words[:most]}..."
