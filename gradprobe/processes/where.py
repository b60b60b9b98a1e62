"""Where a process is that is asked for its stack: what Python does not know of, a kernel's line, stands before it."""

from __future__ import annotations

import contextlib
import os

_stacks: list[int] = []
"""The file that a child writes its stack to."""


def stack_goes_to(descriptor: int) -> None:
    """Says where the stack of this process is written."""
    _stacks.append(descriptor)


def add_to_stack(file: str, line: int, function: str) -> None:
    """Writes a stack of one line, as faulthandler does; nothing where nobody reads it. The last one counts."""
    for descriptor in _stacks[-1:]:
        with contextlib.suppress(OSError):
            words = f'Current thread (most recent call first):\n  File "{file}", line {line} in {function}\n'
            os.write(descriptor, words.encode("ascii", "backslashreplace"))
