"""Kernel code: a digest of all that the code of a kernel is and reaches, wherever it stands in its file.

Two kernels of one digest do the same with the same arguments and memory. Where that cannot be said, as of a kernel that
prints, or that reads an object which may change, there is no digest.
"""

from __future__ import annotations

import builtins
import dis
import functools
import hashlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import torch
import triton
import triton.language as tl
from triton.runtime import interpreter as shipped

_TRITON = f"{Path(triton.__file__).parent}/"
_PLAIN = (int, float, complex, bool, str, bytes, type(None), type(Ellipsis))
_TUPLES: tuple[type, ...] = (tuple, getattr(tl, "tuple", tuple))
_COMPUTING = "abs all any divmod enumerate isinstance len max min pow range reversed round sum zip"
_MAKING = "bool float int list slice tuple"
_BUILTINS = {id(getattr(builtins, name)) for name in f"{_COMPUTING} {_MAKING}".split()}
# What does more than compute: it prints, or changes what others read.
_PRINTING = {"device_print", "static_print"}
_CHANGES = "IMPORT_NAME STORE_GLOBAL DELETE_GLOBAL STORE_ATTR DELETE_ATTR LOAD_BUILD_CLASS LOAD_NAME"
_CHANGING = set(_CHANGES.split())
_OF_CODE = (
    "co_name", "co_code", "co_names", "co_varnames", "co_freevars", "co_cellvars", "co_flags", "co_argcount",
    "co_posonlyargcount", "co_kwonlyargcount", "co_linetable", "co_exceptiontable",
)  # fmt: skip
# What makes up the language and the interpreter.
_SEMANTIC = getattr(shipped, "interpreter_semantic", None)
_SPACES: tuple[Any, ...] = (
    tl, tl.core, tl.core.tensor, tl.math, shipped, shipped.InterpreterBuilder, shipped.TensorHandle,
    shipped.GridExecutor, shipped.FunctionRewriter, type(_SEMANTIC),
)  # fmt: skip
_READ: dict[int, tuple[CodeType, tuple[tuple[str, ...], ...]]] = {}
"""By the id of code, whose hash takes long: the code, and what it reads."""


class Unknown(Exception):
    """What is reached may be another one each time, or does more than compute."""


class Digest:
    """Of functions and values, in the order in which they are told."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)
        self._functions: list[FunctionType] = []
        self.codes: list[CodeType] = []
        """All that was reached, in order."""

    @property
    def hex(self) -> str:
        return self._hash.hexdigest()

    def add(self, *words: object) -> None:
        """Tells values of which `repr` says all."""
        self._hash.update(repr(words).encode(errors="backslashreplace"))

    def bytes(self, held: Any) -> None:
        """Tells what a buffer holds."""
        self._hash.update(held)

    def value(self, value: Any) -> None:
        """Tells a constant, a function, or a tuple of such.

        Raises:
            Unknown: it is none of these, or reaches what is none.
        """
        if type(value) in _PLAIN or type(value) in (tl.dtype, torch.dtype):
            self.add(type(value).__name__, value)
        elif type(value) in _TUPLES:
            self.add("tuple", len(value))
            for each in value:
                self.value(each)
        elif type(value) is tl.constexpr:
            self.add("constexpr")
            self.value(value.value)
        elif type(value) is shipped.InterpretedFunction:
            self._kernel(value)
        elif type(value) is FunctionType:
            self.function(value)
        elif _is_named(value):
            self.add(type(value).__name__, getattr(value, "__qualname__", ""))
        else:
            raise Unknown(value)

    def function(self, function: FunctionType) -> None:
        """Tells a function with all that it reaches; of Triton's own its name. Raises Unknown."""
        code = function.__code__
        if code.co_filename.startswith(_TRITON) and not function.__closure__:
            self.add(function.__module__, function.__qualname__)
            return
        if function in self._functions:
            self.add("again", self._functions.index(function))
            return
        self._functions.append(function)
        self._code(code)
        for part in (function.__defaults__, tuple((function.__kwdefaults__ or {}).items()), _closed_over(function)):
            self.value(part)
        for chain in _read(code):
            self._global(function, *chain)

    def _kernel(self, kernel: Any) -> None:
        """What the interpreter runs in the place of a function."""
        is_tritons = inspect.unwrap(kernel.fn).__code__.co_filename.startswith(_TRITON)
        self.function(kernel.fn if is_tritons else kernel.rewrite())

    def _code(self, code: CodeType) -> None:
        self.codes.append(code)
        self.add(*(getattr(code, name, None) for name in _OF_CODE))
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                self._code(constant)
            else:
                self.add(sorted(map(repr, constant)) if type(constant) is frozenset else constant)

    def _global(self, function: FunctionType, name: str, *attributes: str) -> None:
        """A global name that a function reads; of one in a module, what is read there."""
        spaces = (function.__globals__, vars(builtins))
        value = next((space[name] for space in spaces if name in space), self)
        inner = list(attributes)
        self.add(name)
        while isinstance(value, ModuleType) and inner:
            space = value
            if space.__name__.partition(".")[0] not in ("triton", "math"):
                raise Unknown(space)
            self.add(space.__name__, inner[0])
            value = getattr(space, inner.pop(0), self)
            if space in _SPACES and type(value) in (FunctionType, functools.partial, shipped.InterpretedFunction):
                return  # of Triton's, which nobody replaced
        self.value(value)


def _closed_over(function: FunctionType) -> tuple[Any, ...]:
    try:
        return tuple(cell.cell_contents for cell in function.__closure__ or ())
    except ValueError as error:  # one is not filled yet
        raise Unknown(function) from error


def _is_named(value: Any) -> bool:
    """Whether a name says what it is: functions and classes that only compute, and the interpreter's own semantic."""
    is_error = isinstance(value, type) and issubclass(value, Exception) and value.__module__ == "builtins"
    is_tritons = isinstance(value, type) and value.__module__.partition(".")[0] == "triton"
    of_math = isinstance(value, BuiltinFunctionType) and value.__module__ == "math"
    return is_error or is_tritons or of_math or value is _SEMANTIC or id(value) in _BUILTINS


def _read(code: CodeType) -> tuple[tuple[str, ...], ...]:
    """The global names that code reads, those of inner functions too, each with the attributes that are read of it.

    Raises:
        Unknown: the code prints, or changes what others read.
    """
    if id(code) not in _READ:
        inner = [chain for each in code.co_consts if isinstance(each, CodeType) for chain in _read(each)]
        _READ[id(code)] = code, tuple(dict.fromkeys([*_chains(code), *inner]))
    return _READ[id(code)][1]


def _chains(code: CodeType) -> Iterator[tuple[str, ...]]:
    if not _PRINTING.isdisjoint(code.co_names):
        raise Unknown(code)
    chain: tuple[str, ...] = ()
    for step in dis.get_instructions(code):
        if step.opname in _CHANGING:
            raise Unknown(step.opname)
        if chain and step.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            chain = (*chain, step.argval)
            continue
        if chain:
            yield chain
        chain = (step.argval,) if step.opname == "LOAD_GLOBAL" else ()


# The language


class Language:
    """What Triton's language and interpreter are made of at one time. A target, or whoever looks on, replaces parts."""

    def __init__(self) -> None:
        self._parts = [dict(vars(space)) for space in _SPACES]

    def is_same(self) -> bool:
        """Whether it is made of the same now. Modules may have been imported into it."""
        return all(map(_are_the_same, self._parts, _SPACES))


def _are_the_same(parts: dict[str, Any], space: Any) -> bool:
    now = vars(space)
    new = [now[name] for name in now.keys() - parts.keys() - {"__warningregistry__"}]
    is_as_it_was = all(now.get(name, parts) is part or _is_alike(now.get(name), part) for name, part in parts.items())
    return is_as_it_was and all(isinstance(part, ModuleType) for part in new)


def _is_alike(one: Any, other: Any) -> bool:
    """Whether the same lines made two functions alike: of what a launch replaces, a helper's call leaves some."""
    if isinstance(one, functools.partial) and isinstance(other, functools.partial):
        return (one.args, one.keywords) == (other.args, other.keywords) and _is_alike(one.func, other.func)
    if not isinstance(one, FunctionType) or not isinstance(other, FunctionType):
        return False
    given = (one.__code__, one.__closure__, one.__defaults__)
    return given == (other.__code__, None, other.__defaults__)
