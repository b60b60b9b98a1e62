"""A folder for each language that targets are written in: nothing else of it is known elsewhere than `interface`."""

from __future__ import annotations

import contextlib
import functools
import importlib
import pkgutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from .interface import Event, Language, Launches, Statements

__all__ = ["Event", "Launches", "Statements", "events", "launches", "source"]


@functools.cache
def languages() -> tuple[Language, ...]:
    """The LANGUAGE of each folder."""
    folders = [found.name for found in pkgutil.iter_modules(__path__) if found.ispkg]
    return tuple(importlib.import_module(f"{__name__}.{name}").LANGUAGE for name in sorted(folders))


def _of(file: str) -> Language:
    """The language that a file is written in."""
    return next((each for each in languages() if file.endswith(each.suffixes)), Language())


@contextlib.contextmanager
def launches(found: Launches) -> Iterator[Launches]:
    """While open, what is started is noted, in whatever language."""
    with contextlib.ExitStack() as stack:
        for language in languages():
            stack.enter_context(language.launches(found))
        yield found


def events(function: Callable[..., Any], file: str) -> AbstractContextManager[list[Event]]:
    """While open, calls of a function of a file are followed."""
    return _of(file).events(function)


def source(file: str) -> Statements:
    """The statements of a file."""
    return _of(file).source(file)
