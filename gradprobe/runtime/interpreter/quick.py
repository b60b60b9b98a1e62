"""Patches of what every operation of the interpreter goes through: the same results, by less of Python."""

from __future__ import annotations

import functools
from typing import Any

import triton.language as tl
from triton.runtime import interpreter as shipped

Array = Any
"""A numpy array."""


@functools.cache
def make_operations_quick() -> None:
    """Patches how the interpreter makes a handle, and its builder's casts, new axes and broadcasts."""
    builder, handle = shipped.InterpreterBuilder, shipped.TensorHandle
    validate, cast, broadcast = handle.__post_init__, builder.cast_impl, builder.create_broadcast

    def init(self: Any, data: Array, dtype: Any, attr: dict[str, Any] | None = None) -> None:
        self.data, self.dtype, self.attr = data, dtype, {} if attr is None else attr
        if type(dtype) is not tl.dtype or data.itemsize * 8 > dtype.primitive_bitwidth:
            validate(self)  # which says what is wrong

    def cast_impl(self: Any, source: Any, dtype: Any) -> Any:
        scalar = dtype.scalar
        if scalar.name == "bf16" or source.dtype.scalar.name == "bf16":
            return cast(self, source, dtype)
        return handle(source.data.astype(shipped._get_np_dtype(scalar)), scalar)

    def expand_dims(self: Any, argument: Any, axis: int) -> Any:
        shape = argument.data.shape
        at = axis if axis >= 0 else axis + len(shape) + 1
        return handle(argument.data.reshape((*shape[:at], 1, *shape[at:])), argument.dtype.scalar)

    def create_broadcast(self: Any, argument: Any, shape: Any) -> Any:
        if argument.data.shape == tuple(shape):
            return handle(argument.data, argument.dtype.scalar)
        return broadcast(self, argument, shape)

    handle.__init__ = init
    builder.cast_impl, builder.create_expand_dims, builder.create_broadcast = cast_impl, expand_dims, create_broadcast
