"""The functions of libdevice, which the interpreter leaves out: as shipped they return None."""

from __future__ import annotations

import contextlib
import functools
import importlib
import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter as shipped

Array = Any
"""A numpy array."""
_MODULES = tuple(f"triton.language.extra.{place}libdevice" for place in ("", "cuda.", "hip."))


def _each(function: Callable[[float], float]) -> Callable[[Array], Array]:
    """A function of one number as one of arrays."""
    return np.vectorize(function, otypes=[np.float64])


def _round(values: Array) -> Array:
    """To the nearest whole number, halves away from 0."""
    return np.copysign(np.floor(np.abs(values) + 0.5), values)


_ALIKE = "exp exp2 expm1 log log2 log10 log1p sqrt cbrt sin cos tan sinh cosh tanh floor ceil trunc rint"
_UNARY: dict[str, Callable[[Array], Array]] = {name: getattr(np, name) for name in _ALIKE.split()} | {
    "abs": np.abs, "fabs": np.abs, "acos": np.arccos, "acosh": np.arccosh, "asin": np.arcsin, "asinh": np.arcsinh,
    "atan": np.arctan, "atanh": np.arctanh, "exp10": lambda x: np.power(10.0, x), "rsqrt": lambda x: 1 / np.sqrt(x),
    "erf": _each(math.erf), "erfc": _each(math.erfc), "round": _round, "nearbyint": np.rint,
    "saturate": lambda x: np.clip(x, 0, 1), "saturatef": lambda x: np.clip(x, 0, 1),
}  # fmt: skip
_FAST = ("exp", "exp10", "log", "log2", "log10", "sin", "cos", "tan", "tanh")
_UNARY |= {f"fast_{name}f": _UNARY[name] for name in _FAST}
_BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "pow": np.power, "atan2": np.arctan2, "fmod": np.fmod, "hypot": np.hypot, "copysign": np.copysign,
    "nextafter": np.nextafter, "fdim": lambda x, y: np.maximum(x - y, 0), "fast_powf": np.power,
    "fast_dividef": np.divide, "div_rn": np.divide, "mul_rn": np.multiply, "add_rn": np.add, "sub_rn": np.subtract,
}  # fmt: skip
_TESTS: dict[str, Callable[[Array], Array]] = {"isnan": np.isnan, "isinf": np.isinf, "finitef": np.isfinite}
_TESTS |= {"isfinited": np.isfinite, "signbit": np.signbit}


@functools.cache
def give_libdevice() -> None:
    """Patches the modules of libdevice so that the interpreter computes its functions, or says which one it lacks."""
    for name in _MODULES:
        with contextlib.suppress(ImportError):
            _patch(importlib.import_module(name))


def libdevice_modules() -> list[ModuleType]:
    """Those that there are."""
    found = []
    for name in _MODULES:
        with contextlib.suppress(ImportError):
            found.append(importlib.import_module(name))
    return found


def _patch(module: ModuleType) -> None:
    for name, function in list(vars(module).items()):
        if callable(function) and getattr(function, "__module__", "") == module.__name__ and not name.startswith("_"):
            setattr(module, name, _function(name))


def _function(name: str) -> Callable[..., Any]:
    semantic = shipped.interpreter_semantic

    def call(*args: Any, _semantic: Any = None) -> Any:
        operands = [semantic.to_tensor(arg) for arg in args]
        if name in _TESTS:
            return _computed(operands[0], lambda one: _TESTS[name](one).astype(np.int32), tl.int32)
        if name in _UNARY:
            return _computed(operands[0], _UNARY[name])
        if name not in _BINARY:
            raise NotImplementedError(f"libdevice.{name} is not supported in interpreter mode")
        one, other = semantic.binary_op_type_checking_impl(*operands, False, False, True, True)
        handle = semantic.builder.binary_op(one.handle, other.handle, _BINARY[name])
        return tl.tensor(handle, one.type if one.type.is_block() else other.type)

    return call


def _computed(operand: Any, function: Callable[[Array], Array], dtype: Any = None) -> Any:
    scalar = dtype or operand.type.scalar
    values = function(operand.handle.data).astype(shipped._get_np_dtype(scalar))
    made = operand.type.with_element_ty(scalar) if operand.type.is_block() else scalar
    return tl.tensor(shipped.TensorHandle(values, scalar), made)
