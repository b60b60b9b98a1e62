"""Spares the interpreter a copy of every argument onto itself.

The interpreter copies tensors to the host and back, the whole storage of each. On the CPU both are one storage, and a
copy onto itself brings every page of it into memory, also of one that was mapped to be mostly never touched.
"""

from __future__ import annotations

from typing import Any

from triton.runtime import interpreter as shipped

KEPT = "_host_arguments_kept_in_place"


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
