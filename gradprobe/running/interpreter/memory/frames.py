"""Frames: which lines of a kernel, and of the functions that it calls, are executing."""

from __future__ import annotations

import functools
import linecache
import re
import sys
from pathlib import Path
from types import CodeType, FrameType

import triton

from .findings import Place

Line = tuple[CodeType, int]
# Not a kernel's own: Triton's language and interpreter, and what of this tool wraps them.
_BETWEEN = tuple(str(Path(triton.__file__).parent / part) for part in ("language", "runtime"))
_THIS_TOOL = str(Path(__file__).parents[1])
# The name that a function with taps has for its file.
_TAPPED = re.compile(r"<(.+), \S+ with taps>")


def executing(kernel: CodeType | None) -> tuple[Line, ...]:
    """The lines that are executing, that of the kernel first; the innermost alone where the kernel's is not found."""
    lines: list[Line] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code is kernel:
            return ((frame.f_code, frame.f_lineno), *reversed(lines))
        if not _is_between(frame.f_code.co_filename):
            lines.append((frame.f_code, frame.f_lineno))
        frame = frame.f_back
    return tuple(lines[:1])


def places(lines: tuple[Line, ...]) -> tuple[Place, ...]:
    """The same in words; of a function with taps, the file and line that it was made from."""
    return tuple(_place(code.co_name, code.co_filename, line) for code, line in lines)


@functools.cache
def _is_between(file: str) -> bool:
    return file.startswith((*_BETWEEN, _THIS_TOOL))


def _place(function: str, file: str, line: int) -> Place:
    tapped = _TAPPED.fullmatch(file)
    file = tapped[1] if tapped else file
    return Place(function, file, line, linecache.getline(file, line).strip())
