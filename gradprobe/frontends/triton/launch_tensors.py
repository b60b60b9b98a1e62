"""The tensors among the arguments of a launch: by themselves, in tuples, in descriptors, and wrapped."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def tensors_in(given: Any, name: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(name, tensor, what a kernel gets a pointer to) of an argument and of its parts."""
    if isinstance(given, tuple):
        for at, part in enumerate(given):
            yield from tensors_in(part, f"{name}[{at}]")
    elif hasattr(given, "data_ptr"):
        # Triton wraps a tensor whose bits it is to take for another dtype.
        yield name, getattr(given, "base", given), given
    elif hasattr(given, "block_shape") and hasattr(given, "base"):
        yield from tensors_in(given.base, name)
