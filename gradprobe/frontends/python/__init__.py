"""Plain Python: functions whose expressions, or lines, are told of as they run."""

import functools
import inspect
from collections.abc import Callable
from typing import Any


def plain_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function whose source is meant, inside wrappers (`__wrapped__`), partials and callable objects."""
    plain = inspect.unwrap(getattr(function, "fn", function))
    while isinstance(plain, functools.partial):
        plain = inspect.unwrap(plain.func)
    return plain if inspect.isroutine(plain) or inspect.isclass(plain) else type(plain).__call__
