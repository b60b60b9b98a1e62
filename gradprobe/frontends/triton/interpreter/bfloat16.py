"""bfloat16 in Triton's interpreter, which computes with its bits as with integers."""

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
    if isinstance(thing, tl.dtype):
        return bool(thing.scalar == tl.bfloat16)
    handle: Any = getattr(thing, "handle", thing)
    return isinstance(handle, Handle) and handle.data.dtype == _BITS and handle.dtype.is_bf16()


def values_of(bits: Array) -> Array:
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


@np.errstate(over="ignore", under="ignore", invalid="ignore")
def _to_bits(values: Array) -> Array:
    """To nearest even, by way of float32. NaN stays NaN."""
    bits, half = values.astype(np.float32).view(np.uint32), np.uint32(16)
    nearest = (bits + np.uint32(0x7FFF) + ((bits >> half) & np.uint32(1))) >> half
    return np.where(np.isnan(values), np.uint32(0x7FC0), nearest).astype(np.uint16)


def _rounded(values: Array) -> Any:
    return Handle(_to_bits(values), tl.bfloat16)


def _widened(thing: Any) -> Any:
    if isinstance(thing, Handle) and _is_bf16(thing):
        return Handle(values_of(thing.data), tl.float32)
    return thing


def _on_values(original: Method, self: Any, *args: Any) -> Any:
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
    if op != shipped._ir.ATOMIC_OP.FADD:
        return original(self, op, ptr, val, mask, *order)
    memory, on, addends = shipped._interpreter, np.ones(1, bool), values_of(val.data.reshape(-1))
    found = np.zeros(val.data.size, np.uint16)
    for lane in np.flatnonzero(mask.data):
        there, at = ptr.data.reshape(-1)[[lane]], slice(lane, lane + 1)
        found[at] = memory.load(there, on, np.zeros(1, _BITS), _BITS)
        memory.store(there, _to_bits(values_of(found[at]) + addends[at]), on)
    return Handle(found.reshape(val.data.shape), tl.bfloat16)


def _sum(original: Method, self: Any, tensor: tl.tensor) -> tl.tensor:
    """Each addition rounds. Halves are added to halves, as warps do."""
    parts = values_of(tensor.handle.data)
    axes = tuple(range(parts.ndim)) if self.axis is None else self.axis
    parts = parts.reshape(-1) if self.axis is None else np.moveaxis(parts, self.axis, 0)
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
    for path, mend in _PATCHES.items():
        setattr(*wrapped(path, functools.partial(_mended, mend)))
    # Triton before 3.9 has no constant of it.
    shipped.InterpreterBuilder.get_bf16 = lambda _, value: _rounded(np.array([value]))
    PLANS.forget()
