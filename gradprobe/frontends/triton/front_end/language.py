"""Triton's language as its compiler takes it, in a process whose kernels are interpreted.

Import this only once TRITON_INTERPRET=1 is in the environment, since it imports triton.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from types import CodeType, ModuleType
from typing import Any

import triton.language as tl
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction

from ..interpreter.shipped import shipped_language


def restore_language() -> None:
    """Makes the language of this process the compiler's: no kernel can be interpreted any more."""
    os.environ.pop("TRITON_INTERPRET", None)
    for owner, attributes in shipped_language().items():
        for name, value in list(vars(owner).items()):
            if name not in attributes:
                delattr(owner, name)
            elif attributes[name] is not value and name not in ("__dict__", "__weakref__"):
                setattr(owner, name, attributes[name])


_MADE: dict[int, tuple[Any, Any]] = {}
"""By the id of each interpreted function: it, and the compiler's form of it."""


def compilable(thing: Any) -> Any:
    """The compiler's form of a Triton function, with all that it reaches made so too; anything else as it is."""
    if type(thing) is tl.constexpr and type(thing.value) is InterpretedFunction:
        return tl.constexpr(compilable(thing.value))
    if type(thing) is not InterpretedFunction:
        return thing
    if id(thing) not in _MADE:
        thing.fn.__defaults__ = tuple(map(compilable, thing.fn.__defaults__ or ())) or None
        # Noted before what it reaches, which may be itself.
        _MADE[id(thing)] = thing, JITFunction(thing.fn, **thing.kwargs)
        _reach(thing.fn)
    return _MADE[id(thing)][1]


def _reach(function: Any) -> None:
    """Replaces what a function's names may mean: in its file, in modules that it names, and as methods of tensors."""
    names, spaces = set(_names_in(function.__code__)), [function.__globals__]
    for space in spaces:
        for name in names & space.keys():
            if type(value := space[name]) is ModuleType and vars(value) not in spaces:
                spaces.append(vars(value))
            else:
                space[name] = compilable(value)
    for name in names & vars(tl.tensor).keys():  # a function of the language that is a method as well
        for cell in _cells_with_functions(vars(tl.tensor)[name]):
            setattr(tl.tensor, name, compilable(cell.cell_contents))
    for cell in _cells_with_functions(function):
        cell.cell_contents = compilable(cell.cell_contents)


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names_in(inner)


def _cells_with_functions(function: Any) -> Iterator[Any]:
    """The variables of a closure that hold Triton functions."""
    for cell in getattr(function, "__closure__", None) or ():
        with contextlib.suppress(ValueError):  # a variable that has no value yet
            if type(cell.cell_contents) in (InterpretedFunction, JITFunction):
                yield cell
