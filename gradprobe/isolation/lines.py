"""Finds the line of a user's code in a stack that `faulthandler` wrote."""

from __future__ import annotations

import importlib.util
import linecache
import os
import re
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass

_HEAD = re.compile(r"^(?:(Current thread|Stack)|Thread\b).*\(most recent call first\):$")
_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$')
_ESCAPED = re.compile(r"\\x[0-9a-f]{2}|\\u[0-9a-f]{4}|\\U[0-9a-f]{8}")
# Libraries that run a user's kernel.
_LIBRARIES = ("torch", "triton", "numpy")
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# The parts of this package that are targets like any other.
_TARGETS = tuple(os.path.join(_PACKAGE, *folder) for folder in (("kernels",), ("targets", "adapters")))


@dataclass(frozen=True)
class Line:
    """A line of source."""

    file: str
    line: int
    function: str
    code: str
    """Its text; "" where the file cannot be read."""

    @property
    def words(self) -> str:
        """`attention.py:37 in kernel: x = tl.load(ptr)`."""
        told = min(os.path.relpath(self.file), self.file, key=len)
        return f"{told}:{self.line} in {self.function}" + (f": {self.code}" if self.code else "")


def last_line(written: str) -> Line | None:
    """The innermost line that is not Python's, torch's, Triton's, numpy's or this tool's; None where there is none.

    Args:
        written: the last output of a process, in which the stack may be. Of several stacks the last one counts, and of
            several threads the one that failed.
    """
    stacks = list(_stacks(written))
    at_fault = [frames for is_current, frames in stacks if is_current]
    for frames in (*reversed(at_fault), *(frames for _, frames in reversed(stacks))):
        for file, line, function in frames:
            if _is_users(file):
                return Line(file, line, function, linecache.getline(file, line).strip())
    return None


def _stacks(written: str) -> Iterator[tuple[bool, list[tuple[str, int, str]]]]:
    """For each stack, whether its thread failed, and its frames, the innermost first."""
    frames: list[tuple[str, int, str]] | None = None
    for line in written.splitlines():
        head, frame = _HEAD.match(line), _FRAME.match(line)
        if head:
            frames = []
            yield head[1] is not None, frames
        elif frame and frames is not None:
            frames.append((_file(frame[1]), int(frame[2]), frame[3]))


def _file(written: str) -> str:
    """The name of a file, which faulthandler writes in ASCII with escapes."""
    name = _ESCAPED.sub(lambda found: chr(int(found[0][2:], 16)), written)
    return name if os.path.exists(name) else written


def _is_users(file: str) -> bool:
    if file.startswith("<") or _lies_in(file, *_libraries()):
        return False
    if _lies_in(file, _PACKAGE):
        return _lies_in(file, *_TARGETS)
    paths = sysconfig.get_paths()
    is_installed = _lies_in(file, paths["purelib"], paths["platlib"]) or "-packages" in file
    return is_installed or not _lies_in(file, paths["stdlib"], paths["platstdlib"])


def _libraries() -> list[str]:
    specs = [importlib.util.find_spec(name) for name in _LIBRARIES]
    return [os.path.dirname(spec.origin) for spec in specs if spec is not None and spec.origin]


def _lies_in(file: str, *folders: str) -> bool:
    return any(file.startswith(folder + os.sep) for folder in folders)
