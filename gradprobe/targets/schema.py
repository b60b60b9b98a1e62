"""The signature of what torch knows by a schema: custom operators, `torch.ops` and scripted functions."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any


def declared_signature(function: Callable[..., Any]) -> inspect.Signature | None:
    """The signature that a function's schema declares; None of a function without one."""
    schema = _schema_of(function)
    return None if schema is None else inspect.Signature([_parameter(argument) for argument in schema.arguments])


def written_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """The Python function that a custom operator was made of, where torch keeps it; else the function itself."""
    written: Callable[..., Any] = getattr(function, "_init_fn", function)
    return written


def _schema_of(function: Any) -> Any:
    """`torch.library.custom_op` gives an object around an overload; `torch.ops.a.b` is a packet of overloads."""
    if "torch" not in sys.modules:
        return None
    import torch

    overload = getattr(function, "_opoverload", function)
    if isinstance(overload, torch._ops.OpOverloadPacket):
        overload = getattr(overload, overload.overloads()[0])
    if isinstance(overload, torch._ops.OpOverload):
        return overload._schema
    return function.schema if isinstance(function, torch.jit.ScriptFunction) else None


def _parameter(argument: Any) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY if argument.kwarg_only else inspect.Parameter.POSITIONAL_OR_KEYWORD
    default = argument.default_value if argument.has_default_value() else inspect.Parameter.empty
    return inspect.Parameter(argument.name, kind, default=default)
