"""Puts a WatchedFunction in a function's place: around it, or in its module."""

from __future__ import annotations

import atexit
import functools
import importlib
import inspect
import sys
from types import ModuleType
from typing import Any

from ...model.failures import UsageFailure
from ...model.number import plural
from ...model.writing import safe
from .capture import CapturePlan, WatchedFunction


def capture(function: Any, how: CapturePlan) -> Any:
    """See `gradprobe.capture`. Raises UsageFailure where it is neither a function nor the name of one."""
    if function is None:
        return functools.partial(capture, how=how)
    if isinstance(function, str):
        return ModulePatch(function, how)
    if not callable(function) or isinstance(function, type):
        raise UsageFailure(f"capture takes a function, got {type(function).__name__}")
    watch = WatchedFunction(function, getattr(function, "__name__", type(function).__name__), how)
    atexit.register(_tell, watch)
    return watch.wrapped


class ModulePatch:
    """Within `with`, a module holds the wrapped function in place of its own."""

    def __init__(self, word: str, how: CapturePlan) -> None:
        self.word, self.how = word, how

    def __enter__(self) -> WatchedFunction:
        place, name = parted(self.word)
        self.module = importlib.import_module(place)
        self.original = getattr(self.module, name, None)
        watch = put_in_place(self.module, name, self.word, self.how)
        atexit.register(_tell, watch)
        return watch

    def __exit__(self, *_: object) -> None:
        setattr(self.module, parted(self.word)[1], self.original)


def parted(word: str) -> tuple[str, str]:
    """The module and the function of "package.module:function". Raises UsageFailure where the word has another form."""
    place, colon, name = word.partition(":")
    if (
        not colon
        or not name.isidentifier()
        or not all(part.isidentifier() for part in place.split("."))
    ):
        way_out = "for example --watch model.attention:attention; a method or a nested function cannot be watched"
        raise UsageFailure(f"--watch takes MODULE:FUNCTION, got {word!r}", way_out)
    return place, name


def put_in_place(module: ModuleType, name: str, word: str, how: CapturePlan) -> WatchedFunction:
    """Watches a module's function in its place. Raises UsageFailure where the module has no such function."""
    function = getattr(module, name, None)
    if function is None:
        own = sorted(key for key, value in vars(module).items() if inspect.isfunction(value))
        raise UsageFailure(
            f"{word}: {module.__file__} has no function {name}",
            f"it has: {', '.join(own) or 'none'}",
        )
    if not callable(function) or isinstance(function, type):
        raise UsageFailure(f"{word}: {name} is not a function but {type(function).__name__}")
    watch = WatchedFunction(function, word, how)
    setattr(module, name, watch.wrapped)
    return watch


def _tell(watch: WatchedFunction) -> None:
    """Says on stderr what was kept and what was not."""
    if watch.files:
        them = "it" if len(watch.files) == 1 else "them"
        words = [
            f"kept {plural(len(watch.files), 'set')} of inputs of {watch.name} in {watch.folder}"
        ]
        words.append(f"check {them} with: gradprobe check TARGET --inputs {watch.files[0]}")
    else:
        words = [f"no inputs were kept: {watch.seen.why_nothing(watch.name)}"]
    for line in [*words, *watch.seen.troubles()]:
        print(safe(f"gradprobe: {line}"), file=sys.stderr)
