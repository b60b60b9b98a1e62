"""Origins: which argument of a kernel each pointer came from, kept through all operations on pointers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter as shipped

from ....inputs.memory import Array

Handle: Any = shipped.TensorHandle
Method = Callable[..., Any]
# Methods of the builder whose result holds the pointers of its operands, moved about but not changed.
_MOVES = "splat unsplat broadcast expand_dims reshape trans select cat join split gather"
REARRANGING = tuple(f"create_{name}" for name in _MOVES.split())
# Those whose result holds, in place, pointers that come from its first operand.
IN_PLACE = ("create_addptr", "create_bitcast", "create_int_to_ptr", "create_ptr_to_int")
# Handles of blocks, whose pointers come from their base.
BLOCKS = ("BlockPointerHandle", "TensorDescHandle")
NO_ORIGIN = -1


class Origins:
    """A number for each argument, kept in the `attr` of handles: one for all pointers of a handle, or one for each."""

    def __init__(self) -> None:
        self._key = f"gradprobe origin {id(self)}"

    def set(self, handle: Any, origin: int | Array) -> None:
        handle.attr[self._key] = origin

    def of(self, handle: Any) -> int | Array:
        """The origin of a handle's pointers; an array in their shape where they differ; NO_ORIGIN where it got lost."""
        return handle.attr.get(self._key, NO_ORIGIN)

    def in_place(self, original: Method) -> Method:
        """Wraps a method whose result points into the argument that its first operand points into."""

        def method(builder: Any, operand: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(builder, operand, *args, **kwargs)
            if self._key in operand.attr:
                origin = operand.attr[self._key]
                self.set(result, origin if isinstance(origin, int) else np.broadcast_to(origin, result.data.shape))
            return result

        return method

    def rearranging(self, original: Method) -> Method:
        """Wraps a method that rearranges pointers: their origins, where they differ, are rearranged likewise."""

        def method(builder: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(builder, *args, **kwargs)
            # A loop, since this runs more often than anything else here.
            for arg in args:
                if isinstance(arg, Handle) and self._key in arg.attr:
                    # Where that fails the origin is lost, and addresses are looked up instead.
                    with contextlib.suppress(Exception):
                        self._carry(result, original, builder, args, kwargs)
                    break
            return result

        return method

    def of_base(self, original: Method) -> Method:
        """Wraps the method that makes the pointers of a block: they point into the argument of its base."""

        def materialize_pointers(block: Any, *args: Any, **kwargs: Any) -> Any:
            pointers, masks = original(block, *args, **kwargs)
            if self._key in block.base.attr:
                self.set(pointers, block.base.attr[self._key])
            return pointers, masks

        return materialize_pointers

    def _carry(self, result: Any, original: Method, builder: Any, args: Any, kwargs: Any) -> None:
        origins = [self.of(arg) for arg in args if self._is_pointer(arg)]
        results = result if isinstance(result, tuple) else (result,)
        if all(isinstance(origin, int) and origin == origins[0] for origin in origins):
            for each in results:
                self.set(each, origins[0])
            return
        stand_ins = [self._stand_in(arg) if self._is_pointer(arg) else arg for arg in args]
        moved = original(builder, *stand_ins, **kwargs)
        for each, numbers in zip(results, moved if isinstance(moved, tuple) else (moved,), strict=True):
            self.set(each, numbers.data)

    def _is_pointer(self, thing: Any) -> bool:
        return isinstance(thing, Handle) and (self._key in thing.attr or thing.dtype.scalar.is_ptr())

    def _stand_in(self, pointers: Any) -> Any:
        """The origins of pointers, as a block of the same shape."""
        return Handle(np.array(np.broadcast_to(self.of(pointers), pointers.data.shape), np.int64), tl.int64)
