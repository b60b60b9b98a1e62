"""Patches for the arguments of a launch: no tensor is copied onto itself, and bools are taken.

The interpreter copies the whole storage of each tensor to the host and back. On the CPU both are one storage, and a
copy onto itself brings every page into memory, also where most of a large mapping is never touched. The interpreter
also keeps a bool in 32 bits and then refuses it: without the patch, a bool that is no tl.constexpr stops every launch.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter as shipped


@functools.cache
def keep_arguments_in_place() -> None:
    """Patches the interpreter to copy results back only where they lie elsewhere."""
    restore = shipped.GridExecutor._restore_args_dev

    def restore_copies(self: Any, args_dev: Any, args_hst: Any, kwargs: Any, kwargs_hst: Any) -> None:
        given, held = _flat((*args_dev, *kwargs.values())), _flat((*args_hst, *kwargs_hst.values()))
        if [_address(tensor) for tensor in given] != [_address(tensor) for tensor in held]:
            restore(self, args_dev, args_hst, kwargs, kwargs_hst)

    shipped.GridExecutor._restore_args_dev = restore_copies


@functools.cache
def take_bools() -> None:
    """Patches the interpreter to turn a bool argument into Triton's own bool of one bit."""
    converted = shipped._implicit_cvt

    def convert(argument: Any) -> Any:
        if not isinstance(argument, bool):
            return converted(argument)
        return tl.tensor(shipped.TensorHandle(np.array([argument], np.bool_), tl.int1), tl.int1)

    shipped._implicit_cvt = convert


def _flat(arguments: Any) -> list[Any]:
    """The tensors among a launch's arguments, also those in tuples, descriptors and wrappers."""
    found = []
    for argument in arguments:
        inner = getattr(argument, "base", argument)
        if isinstance(argument, tuple):
            found += _flat(argument)
        elif hasattr(inner, "untyped_storage") or hasattr(inner, "base"):
            found.append(getattr(inner, "base", inner))
    return found


def _address(tensor: Any) -> int:
    return int(tensor.untyped_storage().data_ptr())
