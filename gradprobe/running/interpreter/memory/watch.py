"""Watches every address that Triton's interpreter loads from and stores to while a target runs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import triton

from ...unwritten import Unwritten
from ..bfloat16 import InterpreterNotKnown
from .origins import Method
from .seen import Memory

if TYPE_CHECKING:
    from torch import Tensor


@contextlib.contextmanager
def watched_memory(tensors: Mapping[str, Tensor], unwritten: Unwritten | None = None) -> Iterator[Memory]:
    """While open, every access of a kernel in Triton's interpreter is judged; results stay what they were.

    An access that leaves the storage of its tensor is not executed: a load gives the mask's `other`, or 0, and a store
    or an atomic does nothing. Everything else happens as without the watcher. A tensor's elements are those of the
    view that was passed; an address of unknown origin belongs to the storage that holds it. Views of over 2^24
    elements with gaps in between count as if they had none.

    Args:
        tensors: those that the caller knows by name. Others are named after the kernel's parameter, without "ptr".
        unwritten: which memory has no value as yet; without it, no read is reported as one of unwritten memory.

    Raises:
        InterpreterNotKnown: this release of Triton lacks something that has to be watched.
    """
    memory = Memory(tensors, Unwritten() if unwritten is None else unwritten)
    patches = memory.patches()
    missing = [f"{getattr(owner, '__name__', owner)}.{name}" for owner, name, _ in patches if not hasattr(owner, name)]
    if missing:
        raise InterpreterNotKnown(f"triton {triton.__version__}: its interpreter has no {', '.join(missing)}")
    with contextlib.ExitStack() as stack:
        stack.callback(setattr, memory, "is_open", False)
        for owner, name, watching in patches:
            stack.enter_context(_replaced(owner, name, watching))
        yield memory


@contextlib.contextmanager
def _replaced(owner: Any, name: str, watching: Callable[[Method], Method]) -> Iterator[None]:
    original = getattr(owner, name)
    replacement = watching(original)
    setattr(owner, name, replacement)
    try:
        yield
    finally:
        # Whatever was put on top in the meantime stays, and what lies below it watches no more.
        if getattr(owner, name) is replacement:
            setattr(owner, name, original)
