"""Patches of what every operation of the interpreter goes through: the same results, by less of Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import triton.language as tl
from triton.runtime import interpreter as shipped

Array = Any
"""A numpy array."""


def make_operations_quick() -> None:
    """Patches how the interpreter makes a handle, and its builder's binary operations, casts and new axes.

    What has to do with bfloat16 goes the way that was there before.
    """
    builder, handle = shipped.InterpreterBuilder, shipped.TensorHandle
    validate, cast, operate = handle.__post_init__, builder.cast_impl, builder.binary_op

    def init(self: Any, data: Array, dtype: Any, attr: dict[str, Any] | None = None) -> None:
        self.data, self.dtype, self.attr = data, dtype, {} if attr is None else attr
        if not _fits(data, dtype):
            validate(self)  # which says what is wrong

    def binary_op(self: Any, one: Any, other: Any, operation: Callable[[Array, Array], Array]) -> Any:
        dtype = one.dtype.scalar
        if dtype.name == "bf16" or other.dtype.name == "bf16":
            return operate(self, one, other, operation)
        data = operation(one.data, other.data)
        return handle(data if _fits(data, dtype) else data.astype(shipped._get_np_dtype(dtype)), dtype)

    def cast_impl(self: Any, source: Any, dtype: Any) -> Any:
        scalar = dtype.scalar
        if scalar.name == "bf16" or source.dtype.name == "bf16":
            return cast(self, source, dtype)
        return handle(source.data.astype(shipped._get_np_dtype(scalar)), scalar)

    def expand_dims(self: Any, argument: Any, axis: int) -> Any:
        data = argument.data
        at = axis if axis >= 0 else axis + data.ndim + 1
        return handle(data[(*(slice(None),) * at, None)], argument.dtype.scalar)

    handle.__init__, builder.binary_op, builder.cast_impl = init, binary_op, cast_impl
    builder.create_expand_dims = expand_dims


def _fits(data: Array, dtype: Any) -> bool:
    """Whether elements of an array are no wider than a type's. Bools, of a byte, fit into any."""
    if type(dtype) is not tl.dtype:
        return type(dtype) is tl.pointer_type
    return data.itemsize == 1 or data.itemsize * 8 <= dtype.primitive_bitwidth  # type: ignore[no-any-return]
