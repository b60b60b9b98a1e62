"""Patching: functions of Triton's interpreter with something around them, and what is raised where one lacks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import triton
from triton.runtime import interpreter as shipped

Handle: Any = shipped.TensorHandle
Method = Callable[..., Any]


class InterpreterNotKnown(RuntimeError):
    """This release of Triton lacks something that must be patched."""


def wrapped(path: str, wrap: Callable[[Method], Method]) -> tuple[Any, str, Method]:
    """(owner, name, what is to stand there) of "function" or "Class.method"; to be set for good, or for a while.

    Raises:
        InterpreterNotKnown: the interpreter has none.
    """
    kind, _, name = path.rpartition(".")
    owner = getattr(shipped, kind, None) if kind else shipped
    if not hasattr(owner, name):
        raise InterpreterNotKnown(f"triton {triton.__version__}: its interpreter has no {path}")
    return owner, name, wrap(getattr(owner, name))
