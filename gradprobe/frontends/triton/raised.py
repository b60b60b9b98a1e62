"""The user's lines where a target raised."""

import linecache
import traceback
from collections.abc import Iterator
from typing import Any, NamedTuple

from ...model.failures import text_of
from ...processes.ended import EndedLine, is_users


class RaisedLine(NamedTuple):
    place: EndedLine
    is_compiled: bool


def compiler_place(error: BaseException) -> tuple[EndedLine, str] | None:
    """The innermost line that was being compiled, and the compiler's words."""
    places = [line.place for line in raised_lines(error) if line.is_compiled]
    if not places:
        return None
    place = next((place for place in reversed(places) if is_users(place.file)), places[-1])
    *_, inner = _chain(error)
    words, raised = getattr(inner, "error_message", None), inner.__context__
    if not words and not hasattr(inner, "node"):
        words = text_of(inner)
    if raised is not None and words == repr(raised):
        words = text_of(raised)
    return place, words or place.code


def describe_line(error: BaseException) -> tuple[str, ...]:
    return tuple(line.place.sentence for line in raised_lines(error)[:-3:-1])


def raised_lines(error: BaseException) -> list[RaisedLine]:
    found: dict[int, RaisedLine] = {}
    for each in _chain(error):
        for frame, at in traceback.walk_tb(each.__traceback__):
            file, function = frame.f_code.co_filename, frame.f_code.co_name
            line, key = at, id(frame)
            generator: Any = frame.f_locals.get("self")
            state = getattr(generator, "__dict__", {})
            is_compiled = "lscope" in state and hasattr(state.get("cur_node"), "lineno")
            if is_compiled:
                file, function = generator.file_name, generator.jit_fn.fn.__name__
                line, key = generator.begin_line + generator.cur_node.lineno, id(generator)
            if is_compiled or is_users(file):
                place = EndedLine(file, line, function, linecache.getline(file, line).strip())
                found.setdefault(key, RaisedLine(place, is_compiled))
    return list(found.values())


def _chain(error: BaseException) -> Iterator[BaseException]:
    inner: BaseException | None = error
    while inner is not None:
        yield inner
        inner = inner.__cause__ if type(inner).__module__.partition(".")[0] == "triton" else None
