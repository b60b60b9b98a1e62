"""Where a target raised: the user's lines, in a kernel or around it, and their values."""

from __future__ import annotations

import contextlib
import linecache
import re
import traceback
from collections import ChainMap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ...model.failures import text_of
from ...processes.ended import EndedLine, is_users

_LETTERS = 40
_NAME = re.compile(r"(?<![\w.])[A-Za-z_]\w*")


@dataclass(frozen=True)
class RaisedLine:
    place: EndedLine
    names: Mapping[str, Any]
    """Their values there; types where it was being compiled."""
    is_compiled: bool


def compiler_place(error: BaseException) -> tuple[EndedLine, str] | None:
    """The innermost line that was being compiled, and what the compiler says."""
    places = [line.place for line in raised_lines(error) if line.is_compiled]
    if not places:
        return None
    place = next((place for place in reversed(places) if is_users(place.file)), places[-1])
    *_, inner = _chain(error)
    words = getattr(inner, "error_message", None)
    if not words and not hasattr(inner, "node"):
        words = text_of(inner)
    raised = inner.__context__
    if raised is not None and words == repr(raised):
        words = text_of(raised)
    return place, words or place.code


def describe_line(error: BaseException) -> tuple[str, ...]:
    """The innermost line of the user's, its values, and what called it."""
    lines = raised_lines(error)
    if not lines:
        return ()
    line, code = lines[-1], lines[-1].place.code
    said = [line.place.sentence.removesuffix(f": {code}")] + ([f"    {code}"] if code else [])
    with contextlib.suppress(Exception):  # of objects of the target's own making
        for name in dict.fromkeys(_NAME.findall(code)):
            if name in line.names and (value := _value(line.names[name])):
                said.append(f"    {name} {value}")
    return (*said, *(caller.place.sentence for caller in lines[-2:-1]))


def raised_lines(error: BaseException) -> list[RaisedLine]:
    """From what called the kernel in to what the kernel calls."""
    found: dict[int, RaisedLine] = {}
    for each in _chain(error):
        for frame, at in traceback.walk_tb(each.__traceback__):
            file, line, function = frame.f_code.co_filename, at, frame.f_code.co_name
            names, key = ChainMap(frame.f_locals, frame.f_globals), id(frame)
            generator: Any = frame.f_locals.get("self")
            state = getattr(generator, "__dict__", {})
            is_compiled = "lscope" in state and hasattr(state.get("cur_node"), "lineno")
            if is_compiled:
                names, key = ChainMap(generator.lscope, generator.gscope), id(generator)
                file, line = (
                    generator.file_name,
                    generator.begin_line + generator.cur_node.lineno,
                )
                function = generator.jit_fn.fn.__name__
            if is_compiled or is_users(file):
                place = EndedLine(file, line, function, linecache.getline(file, line).strip())
                found.setdefault(key, RaisedLine(place, names, is_compiled))
    return list(found.values())


def _chain(error: BaseException) -> Iterator[BaseException]:
    inner: BaseException | None = error
    while inner is not None:
        yield inner
        inner = inner.__cause__ if type(inner).__module__.partition(".")[0] == "triton" else None


def _value(value: Any) -> str:
    value = _plain(value)
    if isinstance(value, (bool, int, float, str, type(None))):
        words = repr(value)
        return f"= {words[:_LETTERS]}{'...' * (len(words) > _LETTERS)}"
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if shape is None or dtype is None:
        return ""
    sizes = list(map(_plain, shape))
    return f"{str(dtype).removeprefix('torch.')}{sizes or ''}"


def _plain(value: Any) -> Any:
    return value.value if type(value).__name__ == "constexpr" else value
