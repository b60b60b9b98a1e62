"""What a target warns of, at its import and in its runs: kept for its report, each once, and not written to stderr."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import PurePath
from typing import Any

_KEPT: dict[str, None] = {}


def kept_warnings() -> tuple[str, ...]:
    """What targets of this process warned of: `attention.py:12: DeprecationWarning: use tl.make_tensor_descriptor`."""
    return tuple(_KEPT)


def warning_lines(warned: Iterable[str]) -> tuple[str, ...]:
    """The same as a person reads it beside a failure."""
    return tuple(f"the target warns: {words}" for words in warned)


def _keep(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, file: Any = None, line: Any = None
) -> None:
    """As `warnings.showwarning` is called."""
    _KEPT[f"{PurePath(filename).name}:{lineno}: {category.__name__}: {message}"] = None


@contextmanager
def keeping_warnings() -> Iterator[None]:
    """While open, warnings are kept and not shown."""
    show, warnings.showwarning = warnings.showwarning, _keep
    try:
        yield
    finally:
        warnings.showwarning = show


@contextmanager
def warned_once() -> Iterator[None]:
    """The same, with filters that let each warning come and make none an error.

    In the interpreter numpy warns of numbers that no GPU would warn of; these are left out.
    """
    with warnings.catch_warnings(), keeping_warnings():
        warnings.simplefilter("ignore" if "ignore" in sys.warnoptions else "once")
        warnings.filterwarnings("ignore", category=RuntimeWarning, module="triton")
        yield
