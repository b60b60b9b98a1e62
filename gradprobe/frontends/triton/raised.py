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
# A name that is no attribute of another.
_NAME = re.compile(r"(?<![\w.])[A-Za-z_]\w*")


@dataclass(frozen=True)
class RaisedLine:
    """A line that was running, or being compiled, when something raised."""

    place: EndedLine
    names: Mapping[str, Any]
    """What its names mean there; of a line that was being compiled, types without values."""
    is_compiled: bool


def compiler_place(error: BaseException) -> tuple[EndedLine, str] | None:
    """The innermost line that was being compiled, and what the compiler says; None of what no compiler raised."""
    place, is_of_user = None, False
    for line in raised_lines(error):
        # Else in the language itself.
        if line.is_compiled and (is_users(line.place.file) or not is_of_user):
            place, is_of_user = line.place, is_users(line.place.file)
    if place is None:
        return None
    *_, inner = _chain(error)
    words = getattr(inner, "error_message", None)
    if not words and not hasattr(inner, "node"):
        words = text_of(inner)
    raised = inner.__context__
    if raised is not None and words == repr(raised):
        words = text_of(raised)
    return place, words or place.code


def stood_there(error: BaseException) -> tuple[str, ...]:
    """Lines for a person: the innermost line of the user's, its values, and what called it.

    Nothing where no line of the user's is known, or where a variable of it breaks whoever looks at it.
    """
    try:
        lines = raised_lines(error)
        return tuple(_explanation(lines)) if lines else ()
    except Exception:  # of objects of the target's own making; the message stands without
        return ()


def _explanation(lines: list[RaisedLine]) -> Iterator[str]:
    *callers, line = lines
    place = line.place
    yield place.sentence.removesuffix(f": {place.code}")
    if place.code:
        yield f"    {place.code}"
    for name in dict.fromkeys(_NAME.findall(place.code)):
        value = _value(line.names[name]) if name in line.names else ""
        if value:
            yield f"    {name} {value}"
    if callers:
        yield callers[-1].place.sentence


def raised_lines(error: BaseException) -> list[RaisedLine]:
    """From the outside in: of what called the kernel, of the kernel, and of what the kernel calls."""
    found: dict[int, RaisedLine] = {}
    for each in _chain(error):
        for frame, number in traceback.walk_tb(each.__traceback__):
            code = frame.f_code
            generator: Any = frame.f_locals.get("self")
            if {"lscope", "begin_line"} <= getattr(generator, "__dict__", {}).keys():  # what compiles a kernel
                node: Any = getattr(generator, "cur_node", None)
                if hasattr(node, "lineno"):
                    line = generator.begin_line + node.lineno
                    place = _place(generator.file_name, line, generator.jit_fn.fn.__name__)
                    names = ChainMap(generator.lscope, generator.gscope)
                    found.setdefault(id(generator), RaisedLine(place, names, True))
            elif is_users(code.co_filename):
                place = _place(code.co_filename, number, code.co_name)
                names = ChainMap(frame.f_locals, frame.f_globals)
                found.setdefault(id(frame), RaisedLine(place, names, False))
    return list(found.values())


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error, and what Triton wrapped in it."""
    inner: BaseException | None = error
    while inner is not None:
        yield inner
        inner = inner.__cause__ if type(inner).__module__.partition(".")[0] == "triton" else None


def _place(file: str, line: int, function: str) -> EndedLine:
    return EndedLine(file, line, function, _cut(linecache.getline(file, line).strip(), _CODE))


def _value(value: Any) -> str:
    """`int32[32]`, `= 24`; "" of what says nothing."""
    value = _plain(value)
    if isinstance(value, (bool, int, float, str, type(None))):
        return f"= {_cut(repr(value), _LETTERS)}"
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if shape is None or dtype is None:
        return ""
    sizes = list(map(_plain, shape))
    return f"{str(dtype).removeprefix('torch.')}{sizes or ''}"


def _plain(value: Any) -> Any:
    """The number of a constant of the language; else the value itself."""
    return value.value if type(value).__name__ == "constexpr" else value


def _cut(words: str, most: int) -> str:
    return words if len(words) <= most else f"{words[:most]}..."
