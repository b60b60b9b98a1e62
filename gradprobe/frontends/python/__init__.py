"""Plain Python, and the files of kernels in Python."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

from .. import Language, Statements


class PythonLanguage(Language):
    suffixes = (".py",)

    def source(self, file: str) -> Statements:
        from .statements import PythonStatements

        return PythonStatements(file)


LANGUAGE = PythonLanguage()


def plain_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function inside wrappers (`__wrapped__`), partials and callable objects."""
    plain = inspect.unwrap(getattr(function, "fn", function))
    while isinstance(plain, functools.partial):
        plain = inspect.unwrap(plain.func)
    return plain if inspect.isroutine(plain) or inspect.isclass(plain) else type(plain).__call__
