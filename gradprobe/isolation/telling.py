"""Lets a worker tell its progress and first results before it answers, whoever listens."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

_listeners: list[Callable[[Any], object]] = []


def tell(value: Any) -> None:
    """Hands a value at once to whoever made this worker; to nobody where nobody listens."""
    if _listeners:
        _listeners[-1](value)


@contextlib.contextmanager
def heard_by(listener: Callable[[Any], object]) -> Iterator[None]:
    """While open, the listener gets every value that is told in this process."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.pop()
