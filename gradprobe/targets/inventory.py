"""Inventory: every function of a user's file that may be a target, from one import and one reading of the file."""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from ..frontends import plain_function
from ..source.triton_source import kernel_below
from .find import FoundFunction, Target, callables, function_in, load_file
from .naming import LoadedSource, edited_modules, is_autograd_function, shadows, source_of
from .surroundings import Surroundings


@dataclass(frozen=True)
class Inventory:
    """A file that was imported."""

    module: ModuleType
    functions: tuple[FoundFunction, ...]
    """By their lines; each has the word that finds it."""


def inventory(file: str) -> Inventory:
    """What a file defines that may be a target.

    Raises:
        UsageFailure: there is no such file.
        TargetFailure: it fails to import.
    """
    changes = Surroundings()
    module = load_file(Path(file), file, changes)
    whole = _source(module)
    found = []
    for name in applicable(module):
        word = f"{file}:{name}"
        function = function_in(module, name, word)
        found.append(FoundFunction(word, function, _within(whole, function, module), changes))
    return Inventory(module, tuple(sorted(found, key=lambda function: function.source.line)))


def applicable(module: ModuleType) -> Iterator[str]:
    """The names of what may be a target; of an autograd.Function the one of its `apply`, where the module has it."""
    applied = {
        owner: key
        for key, value in vars(module).items()
        if getattr(value, "__name__", "") == "apply"
        and is_autograd_function(owner := getattr(value, "__self__", None))
    }
    for key in callables(module):
        yield applied.get(vars(module)[key], key)


def _source(module: ModuleType) -> LoadedSource:
    """The source of the module as a whole, without a function's name and line."""
    file = Path(str(module.__file__)).resolve()
    others = shadows(module.__name__.replace("gradprobe_target_", ""), file)
    return LoadedSource("", str(file), 0, hashlib.sha256(file.read_bytes()).hexdigest(), others)


def _within(
    whole: LoadedSource, function: Callable[..., Any], module: ModuleType
) -> LoadedSource:
    """The source of a function, which a decorator may have taken from another file."""
    plain = plain_function(function)
    try:
        if Path(inspect.getsourcefile(plain) or "").resolve() == Path(whole.file):
            return replace(whole, name=plain.__name__, line=inspect.findsource(plain)[1] + 1)
    except (TypeError, OSError):
        pass
    return source_of(function, module)


def files_with_kernels(target: Target) -> tuple[str, ...]:
    """The user's files that define Triton functions, of those that a target's names lead to."""
    if "triton.runtime" not in sys.modules:
        return ()
    found = dict[str, None]()
    for file, module in edited_modules([plain_function(target.function).__module__]).items():
        for kernel in filter(None, map(kernel_below, vars(module).values())):
            if kernel.fn.__module__ == module.__name__:  # it does not only import it
                found[file] = None
    return tuple(found)
