"""Triton's language as it is shipped, and libdevice, whose functions the interpreter leaves out: they return None."""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import math
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter as shipped

_MODULES = ("core", "math", "standard", "random", "semantic")
_ALIKE = (
    "exp exp2 expm1 log log2 log10 log1p sqrt cbrt sin cos tan sinh cosh tanh floor ceil trunc rint fmod hypot "
    "copysign nextafter isnan isinf signbit"
)
_FUNCTIONS: dict[str, Callable[..., Any]] = {name: getattr(np, name) for name in _ALIKE.split()} | {
    "abs": np.abs, "fabs": np.abs, "acos": np.arccos, "acosh": np.arccosh, "asin": np.arcsin, "asinh": np.arcsinh,
    "atan": np.arctan, "atanh": np.arctanh, "exp10": lambda x: np.power(10.0, x), "rsqrt": lambda x: 1 / np.sqrt(x),
    "erf": np.frompyfunc(math.erf, 1, 1), "erfc": np.frompyfunc(math.erfc, 1, 1), "nearbyint": np.rint,
    "round": lambda x: np.copysign(np.floor(np.abs(x) + 0.5), x),  # halves away from 0
    "saturate": lambda x: np.clip(x, 0, 1), "saturatef": lambda x: np.clip(x, 0, 1),
    "pow": np.power, "atan2": np.arctan2, "fdim": lambda x, y: np.maximum(x - y, 0), "fast_powf": np.power,
    "fast_dividef": np.divide, "div_rn": np.divide, "mul_rn": np.multiply, "add_rn": np.add, "sub_rn": np.subtract,
    "finitef": np.isfinite, "isfinited": np.isfinite,
}  # fmt: skip
_FAST = ("exp", "exp10", "log", "log2", "log10", "sin", "cos", "tan", "tanh")
_FUNCTIONS |= {f"fast_{name}f": _FUNCTIONS[name] for name in _FAST}


@functools.cache
def shipped_language() -> Mapping[Any, Mapping[str, Any]]:
    """The attributes of the language's modules and classes as they were when this was first called.

    The interpreter replaces parts of it in each launch, this tool some for good.
    """
    modules = [tl, *(getattr(tl, name) for name in _MODULES if hasattr(tl, name)), *libdevice_modules()]
    classes = {value for module in modules for value in vars(module).values() if inspect.isclass(value)}
    own = [each for each in classes if each.__module__.startswith("triton.language")]
    return {owner: dict(vars(owner)) for owner in (*modules, *own)}


def give_libdevice() -> None:
    """Patches the modules of libdevice so that the interpreter computes its functions, or says which one it lacks."""
    for module in libdevice_modules():
        for name, function in list(vars(module).items()):
            is_own = callable(function) and getattr(function, "__module__", "") == module.__name__
            if is_own and not name.startswith("_"):
                setattr(module, name, _function(name))


def libdevice_modules() -> list[ModuleType]:
    """Those that there are."""
    found = []
    for place in ("", "cuda.", "hip."):
        with contextlib.suppress(ImportError):
            found.append(importlib.import_module(f"triton.language.extra.{place}libdevice"))
    return found


def _function(name: str) -> Callable[..., Any]:
    semantic = shipped.interpreter_semantic

    def call(*args: Any, _semantic: Any = None) -> Any:
        if name not in _FUNCTIONS:
            raise NotImplementedError(f"libdevice.{name} is not supported in interpreter mode")
        function, operands = _FUNCTIONS[name], [semantic.to_tensor(arg) for arg in args]
        if len(operands) == 2:
            left, right = semantic.binary_op_type_checking_impl(*operands, False, False, True, True)
            handle = semantic.builder.binary_op(left.handle, right.handle, function)
            return tl.tensor(handle, left.type if left.type.is_block() else right.type)
        (operand,) = operands
        values = function(operand.handle.data)
        scalar = tl.int32 if values.dtype == np.bool_ else operand.type.scalar
        made = operand.type.with_element_ty(scalar) if operand.type.is_block() else scalar
        return tl.tensor(shipped.TensorHandle(values.astype(shipped._get_np_dtype(scalar)), scalar), made)

    return call
