"""What a worker says before it answers: how far it is, what it has come to. It need not know who listens."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

_listeners: list[Callable[[Any], object]] = []


def tell(value: Any) -> None:
    """Hands a value to whoever made this worker, at once; to nobody, where nobody listens."""
    if _listeners:
        _listeners[-1](value)


@contextlib.contextmanager
def heard_by(listener: Callable[[Any], object]) -> Iterator[None]:
    """While open, the listener is given what is told in this process."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.pop()
