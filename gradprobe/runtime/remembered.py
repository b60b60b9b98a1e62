"""What a target keeps from call to call: a digest of all that its code reaches and could read again."""

from __future__ import annotations

import abc
import collections
import functools
import gc
import hashlib
import logging
import os
import random
import re
import sys
import threading
import types
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from ..targets.surroundings import values_of_spaces
from .launches import kernel_types

if TYPE_CHECKING:
    from ..targets.find import Target

# What runs the target, and what that may import late. What a target puts there is among its surroundings.
_TOOLS = {"gradprobe", "reference", "torch", "triton", "numpy", "functorch", "torchgen", "sympy", "mpmath", "networkx"}
_LOADED: set[str] = set()
"""The packages that were there before any target's."""
_GIVEN: dict[tuple[str, str], Any] = {}
"""What torch and its like held before any target ran."""
# Objects and bytes beyond which it takes longer to look than may be gained.
_MOST_OBJECTS, _MOST_BYTES = 20_000, 16 << 20


class _Pair(NamedTuple):
    one: int


_OF_A_MODULE = {"__builtins__", "__spec__", "__loader__", "__cached__", "__doc__", "__warningregistry__"}
_PLAIN: tuple[type, ...] = (
    int, float, complex, str, bytes, type(None), type(Ellipsis), type(NotImplemented), range, slice, re.Pattern,
    types.CodeType, types.GenericAlias, types.UnionType, types.GetSetDescriptorType, types.MemberDescriptorType,
    types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType, PurePath,
    type(vars(abc.ABC)["_abc_impl"]), type(vars(_Pair)["one"]),
    torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format, np.dtype, np.generic, np.ufunc,
)  # fmt: skip
# Of which it matters alone which one it is.
_NAMED: tuple[type, ...] = (
    logging.Logger, torch._ops.OpOverload, torch._ops.OpOverloadPacket, torch._C._DispatchModule,
    type(threading.Lock()),
)  # fmt: skip
# What holds others and nothing besides. A cache of functools tells those that it holds, in the order of their use.
_REFERRING: tuple[type, ...] = (
    staticmethod, classmethod, property, functools.partial, types.CellType, types.MappingProxyType, types.MethodType,
    types.MethodWrapperType, type(functools.lru_cache(lambda: 0)),
)  # fmt: skip
# Of such a cache: what it holds is told by the cache itself.
_LINK = "_lru_list_elem"


def begin() -> None:
    """Called in a process that is there for one target, before it is imported. Without, no state can be told."""
    _LOADED.update({name.partition(".")[0] for name in sys.modules} - {"__main__"})
    _GIVEN.update(values_of_spaces())


class _Unknown(Exception):
    """There is something of which Python does not show all that it holds."""


@dataclass(frozen=True)
class Remembered:
    """The state of a target between two of its calls."""

    digest: bytes
    kernels: dict[int, Any] = field(compare=False, repr=False)
    """The Triton kernels that it reaches, and their functions, by id."""


def remembered(target: Target) -> Remembered | None:
    """The state now; None where that cannot be told.

    That is what the target's function reaches, and what the modules do that are no tool's: variables, defaults,
    closures, attributes, caches, and the bytes of tensors; what was put into torch; the environment; and generators of
    random numbers. Not seen are files, and what compiled libraries keep for themselves.
    """
    if not _LOADED:
        return None
    modules = [module for name, module in list(sys.modules.items()) if _is_the_targets(name)]
    of_numpy = np.random.get_state() if "numpy.random" in sys.modules else None
    around = [repr(os.environ), repr(random.getstate()), torch.get_rng_state(), repr(of_numpy), target.surroundings]
    put = {at: value for at, value in values_of_spaces().items() if value is not _GIVEN.get(at, _GIVEN)}
    walk = _StateWalk()
    try:
        walk.through([target.function, modules, around, put])
    except Exception:  # _Unknown, or what attributes of others raise
        return None
    return Remembered(walk.digest.digest(), walk.kernels)


def _is_the_targets(module: str) -> bool:
    top = module.partition(".")[0]
    is_tool = top in _TOOLS or top in _LOADED or top in sys.stdlib_module_names
    return not is_tool or module.startswith("gradprobe.kernels.")


class _StateWalk:
    """Everything that is reached, in an order that depends on nothing else."""

    def __init__(self) -> None:
        self.digest = hashlib.blake2b(digest_size=16)
        self.kernels: dict[int, Any] = {}
        self._kernel_types = tuple(kernel_types())
        self._poured = vars(sys.modules.get("triton.runtime.interpreter", types))
        """What the interpreter puts into the modules of kernels."""
        self._numbers: dict[int, int] = {}
        self._held: list[Any] = []
        self._bytes = 0

    def through(self, roots: list[Any]) -> None:
        """Raises _Unknown."""
        waiting = [iter(roots)]
        while waiting:
            for thing in waiting[-1]:
                if (inner := self._met(thing)) is not None:
                    waiting.append(iter(inner))
                    break
            else:
                self.digest.update(b")")
                waiting.pop()

    def _met(self, thing: Any) -> Iterable[Any] | None:
        """What it holds; None where it was met before, or holds nothing."""
        if isinstance(thing, _PLAIN):
            self._said(repr(thing))
            return None
        if len(self._held) > _MOST_OBJECTS:
            raise _Unknown
        known = self._numbers.setdefault(id(thing), len(self._held))
        self._held.append(thing)  # so that no other takes its id
        if known < len(self._held) - 1 and type(thing) is not tuple:  # equal ones may be one or several
            self._said(f"@{known}")
            return None
        self._said(f"({type(thing).__qualname__}")
        return self._inner(thing)

    def _said(self, words: str) -> None:
        self.digest.update(words.encode(errors="replace"))

    def _inner(self, thing: Any) -> Iterable[Any]:
        if isinstance(thing, types.ModuleType):
            return self._of_module(thing.__name__, vars(thing))
        if isinstance(thing, type):
            self._said(thing.__qualname__)
            return [*_items(vars(thing))] if _is_the_targets(str(thing.__module__)) else []
        if isinstance(thing, types.FunctionType):
            space = thing.__globals__
            own = self._of_module(str(space.get("__name__", "")), space)
            return [thing.__closure__, thing.__defaults__, thing.__kwdefaults__, vars(thing), *own]
        if isinstance(thing, types.BuiltinFunctionType):
            self._said(thing.__qualname__)
            return [thing.__self__]
        if isinstance(thing, torch.Tensor):
            return self._of_tensor(thing)
        if isinstance(thing, np.ndarray):
            self._hashed(thing)
            return thing.tolist() if thing.dtype.hasobject else [thing.shape, thing.dtype]
        if isinstance(thing, _NAMED):
            return [id(thing)]
        if isinstance(thing, _REFERRING):
            return gc.get_referents(thing)
        if type(thing).__name__ == _LINK:
            return []
        return self._of_instance(thing)

    def _of_module(self, name: str, space: dict[str, Any]) -> list[Any]:
        if not _is_the_targets(name):
            return [name]
        if id(space) in self._numbers:
            return [space]
        self._numbers[id(space)] = len(self._held)
        self._held.append(space)
        return [*_items({key: value for key, value in space.items() if not self._is_given(key, value)})]

    def _is_given(self, name: str, value: Any) -> bool:
        """Whether Python or the interpreter put a name into a module."""
        is_poured = value is self._poured.get(name, self) or not _is_the_targets(str(getattr(value, "__module__", "_")))
        return name in _OF_A_MODULE or (name in self._poured and is_poured)

    def _of_tensor(self, tensor: torch.Tensor) -> list[Any]:
        if tensor.layout != torch.strided or tensor.device.type != "cpu" or tensor.grad_fn is not None:
            raise _Unknown
        storage = tensor.untyped_storage()
        self._hashed(torch.empty(0, dtype=torch.uint8).set_(storage).numpy())
        about = [tensor.dtype, tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.requires_grad]
        return [*about, tensor.grad, getattr(tensor, "__dict__", None)]

    def _hashed(self, array: np.ndarray[Any, Any]) -> None:
        self._bytes += array.nbytes
        if self._bytes > _MOST_BYTES:
            raise _Unknown
        if not array.dtype.hasobject:
            self.digest.update(array.tobytes())

    def _of_instance(self, thing: Any) -> list[Any]:
        """Of whatever Python made: its attributes, and its items where it is a container."""
        if isinstance(thing, self._kernel_types):
            self.kernels |= {id(thing): thing, id(thing.fn): thing.fn}
            return [thing.fn, getattr(thing, "pre_run_hooks", None)]
        found: list[Any] = []
        if isinstance(thing, dict):
            found += _items(thing)
        elif isinstance(thing, (list, tuple, set, frozenset, collections.deque)):
            found += thing
        elif isinstance(thing, weakref.ref):
            found.append(thing())
        elif isinstance(thing, BaseException):
            found.append(thing.args)
        elif _is_partly_hidden(type(thing)):
            raise _Unknown
        attributes = dict(getattr(thing, "__dict__", {}))
        if type(thing).__module__ == "triton.runtime.autotuner":
            attributes.pop("nargs", None)  # the arguments of the last call, which nobody reads in the next
        found += _items(attributes)
        return [*found, *(getattr(thing, name, None) for name in _slots(type(thing)))]


def _items(held: Any) -> Iterator[Any]:
    for key, value in list(held.items()):
        yield key
        yield value


def _slots(kind: type) -> list[str]:
    declared = [vars(one).get("__slots__", ()) for one in kind.__mro__]
    names = [name for one in declared for name in ([one] if isinstance(one, str) else one)]
    return [name for name in names if name not in ("__dict__", "__weakref__")]


def _is_partly_hidden(kind: type) -> bool:
    """Whether its objects hold more than attributes, as those of compiled libraries do."""
    words = len(_slots(kind)) + bool(kind.__dictoffset__) + bool(kind.__weakrefoffset__)
    return bool(kind.__itemsize__) or kind.__basicsize__ > object.__basicsize__ + 8 * words
