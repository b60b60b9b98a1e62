"""What the interpreter makes of a launch's arguments, mended: no copies onto themselves, and bools as numbers.

The interpreter copies tensors to the host and back, the whole storage of each. On the CPU both are one storage, and a
copy onto itself brings every page of it into memory, also of one that was mapped to be mostly never touched. And it
holds a bool in 32 bits, which it refuses itself: a bool that is no tl.constexpr stops every launch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter as shipped

KEPT = "_host_arguments_kept_in_place"
TAKEN = "_bools_taken"


def keep_arguments_in_place() -> None:
    """Patch the interpreter, once, so that results are copied back only where they lie elsewhere."""
    if getattr(shipped, KEPT, False):
        return
    restore = shipped.GridExecutor._restore_args_dev

    def restore_copies(self: Any, args_dev: Any, args_hst: Any, kwargs: Any, kwargs_hst: Any) -> None:
        given, held = _flat((*args_dev, *kwargs.values())), _flat((*args_hst, *kwargs_hst.values()))
        if [_address(tensor) for tensor in given] != [_address(tensor) for tensor in held]:
            restore(self, args_dev, args_hst, kwargs, kwargs_hst)

    shipped.GridExecutor._restore_args_dev = restore_copies
    setattr(shipped, KEPT, True)


def take_bools() -> None:
    """Patch the interpreter, once, so that an argument that is a bool is one of Triton's own, of one bit."""
    if getattr(shipped, TAKEN, False):
        return
    converted = shipped._implicit_cvt

    def convert(argument: Any) -> Any:
        if not isinstance(argument, bool):
            return converted(argument)
        return tl.tensor(shipped.TensorHandle(np.array([argument], np.bool_), tl.int1), tl.int1)

    shipped._implicit_cvt = convert
    setattr(shipped, TAKEN, True)


def _flat(arguments: Any) -> list[Any]:
    """The tensors among a launch's arguments, in tuples and under descriptors and wrappers too."""
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
