"""Other people's attention kernels, and those in CUDA C++, as functions with this project's parameter names."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any


def narrowed(
    function: Callable[..., Any],
    lacking: tuple[str, ...],
    context: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Callable[..., Any]:
    """The function without the parameters named in `lacking`, called within `context()`."""
    signature = inspect.signature(function)
    kept = [own for own in signature.parameters.values() if own.name not in lacking]

    @functools.wraps(function)
    def narrow(*args: Any, **kwargs: Any) -> Any:
        with context():
            return function(*args, **kwargs)

    vars(narrow)["__signature__"] = signature.replace(parameters=kept)
    return narrow
