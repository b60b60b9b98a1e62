"""Triton functions as they are read here: each once, with its file and what it finds outside itself."""

from __future__ import annotations

import inspect
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..running.taps.functions import Function, read_function


@lru_cache(maxsize=512)
def function_of(jit: Any) -> Function:
    """A Triton function, read once.

    Raises:
        OSError, SyntaxError: as `read_function`.
    """
    return read_function(jit)


@lru_cache(maxsize=512)
def file_of(function: Function) -> str:
    """The file that it stands in."""
    return str(Path(inspect.getsourcefile(function.plain) or "").resolve())


@lru_cache(maxsize=512)
def scope_of(function: Function) -> dict[str, Any]:
    """What it finds outside itself, as it was when it was first asked for."""
    return function.scope
