"""bfloat16 in Triton's interpreter, which keeps its bits in numpy's uint16 and computes with them
as with integers.

The language itself takes maxima, minima and running sums in float32.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter as shipped

from ....inputs.memory import Array
from .plans import PLANS, Handle, Method, wrapped

# Of numpy's own type: it compares with another one ten times faster than with np.uint16.
_BITS = np.dtype(np.uint16)


def _is_bf16(thing: Any) -> bool:
    """Whether an argument is the type, or holds its bits: a comparison holds bools."""
    if isinstance(thing, tl.dtype):
        return bool(thing.scalar == tl.bfloat16)
    handle: Any = thing if isinstance(thing, Handle) else getattr(thing, "handle", None)
    is_bits = isinstance(handle, Handle) and handle.data.dtype == _BITS
    return is_bits and bool(handle.dtype == tl.bfloat16)


def values_of(bits: Array) -> Array:
    """The float32 values of bfloat16 bits."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


@np.errstate(over="ignore", under="ignore", invalid="ignore")
def _to_bits(values: Array) -> Array:
    """Rounds numbers once to bfloat16, to nearest even. NaN stays NaN."""
    single = values.astype(np.float32)
    bits = single.view(np.uint32)
    if values.dtype.itemsize > 2 and values.dtype != np.float32:
        # Rounded to odd where float32 is inexact, so that the second rounding adds no error.
        values = values.astype(np.float64)
        bits = bits - (np.abs(single) > np.abs(values)).astype(np.uint32)
        bits = bits | (single != values).astype(np.uint32)
    half = np.uint32(16)
    nearest = (bits + np.uint32(0x7FFF) + ((bits >> half) & np.uint32(1))) >> half
    quiet = (bits >> half) | np.uint32(0x40)
    return np.where(np.isnan(single), quiet, nearest).astype(np.uint16)


def _rounded(values: Array) -> Any:
    return Handle(_to_bits(values), tl.bfloat16)


def _widened(thing: Any) -> Any:
    is_bits = isinstance(thing, Handle) and _is_bf16(thing)
    return Handle(values_of(thing.data), tl.float32) if is_bits else thing


def _on_values(original: Method, self: Any, *args: Any) -> Any:
    """The result is bfloat16, or a mask, where every operand is bfloat16."""
    if args[-1] is np.where:
        return original(self, *args)
    result = original(self, *map(_widened, args))
    if not all(_is_bf16(arg) for arg in args if isinstance(arg, Handle)):
        return result
    is_mask = result.data.dtype == np.bool_
    return Handle(result.data, tl.int1) if is_mask else _rounded(result.data)


def _cast(original: Method, self: Any, src: Any, dst_type: tl.dtype) -> Any:
    """The shipped one truncates float32, and takes float64 and ints for bits."""
    src = _widened(src)
    return _rounded(src.data) if _is_bf16(dst_type) else original(self, src, dst_type)


def _atomic_add(
    original: Method, self: Any, op: Any, ptr: Any, val: Any, mask: Any, *order: Any
) -> Any:
    """Triton's only atomic of it. Lanes with equal pointers take turns."""
    if op != shipped._ir.ATOMIC_OP.FADD:
        return original(self, op, ptr, val, mask, *order)
    memory, pointers, addends = shipped._interpreter, ptr.data.reshape(-1), val.data.reshape(-1)
    found, turn = np.zeros(val.data.size, np.uint16), np.flatnonzero(mask.data)
    while turn.size:
        there, first = np.unique(pointers[turn], return_index=True)
        lanes, on = turn[first], np.ones(there.shape, bool)
        found[lanes] = memory.load(there, on, np.zeros(there.shape, _BITS), _BITS)
        memory.store(there, _to_bits(values_of(found[lanes]) + values_of(addends[lanes])), on)
        turn = np.delete(turn, first)
    return Handle(found.reshape(val.data.shape), tl.bfloat16)


def _sum(original: Method, self: Any, tensor: tl.tensor) -> tl.tensor:
    """tl.sum stays in bfloat16, so each addition rounds. Halves are added to halves, as warps do."""
    values = values_of(tensor.handle.data)
    axes = tuple(range(values.ndim)) if self.axis is None else self.axis
    parts = values.reshape(-1) if self.axis is None else np.moveaxis(values, self.axis, 0)
    while len(parts) > 1:
        half = len(parts) // 2
        added = values_of(_to_bits(parts[:half] + parts[half : 2 * half]))
        parts = np.concatenate([added, parts[2 * half :]])
    total = np.expand_dims(parts[0], axes) if self.keep_dims else parts[0]
    return self.to_tensor(_to_bits(total), tl.bfloat16)


_VALUE_METHODS = "binary_op unary_op ternary_op create_rsqrt create_erf create_dot create_fma"
_PATCHES = dict.fromkeys(map("InterpreterBuilder.{}".format, _VALUE_METHODS.split()), _on_values)
_PATCHES["InterpreterBuilder.cast_impl"] = _cast
_PATCHES["InterpreterBuilder.create_atomic_rmw"] = _atomic_add
_PATCHES["ReduceOps.sum"] = _sum


def _mended(mend: Method, original: Method, self: Any, *args: Any, **kwargs: Any) -> Any:
    if any(map(_is_bf16, args)):
        return mend(original, self, *args, **kwargs)
    return original(self, *args, **kwargs)


@functools.cache
def make_bfloat16_right() -> None:
    """Lets operations on bfloat16 compute with values and round as compiled kernels do."""
    for path, mend in _PATCHES.items():
        setattr(*wrapped(path, functools.partial(_mended, mend)))
    # Triton before 3.9 has no constant of it.
    shipped.InterpreterBuilder.get_bf16 = lambda _, value: _rounded(
        np.array([value], np.float64)
    )
    PLANS.forget()  # they may hold constants
