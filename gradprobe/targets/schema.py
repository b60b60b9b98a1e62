"""The signature of what torch calls: by a schema (custom operators, `torch.ops`, what is scripted), or a module's."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any


def declared_signature(function: Callable[..., Any]) -> inspect.Signature | None:
    """The signature that a function's schema declares, or a module's `forward` has; None of a function without one."""
    forward = _forward_of(function)
    if forward is not None and not hasattr(forward, "schema"):
        return inspect.signature(forward)
    schema = _schema_of(function if forward is None else forward)
    return (
        None
        if schema is None
        else inspect.Signature([_parameter(argument) for argument in schema.arguments if argument.name != "self"])
    )


def written_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """The Python function of a custom operator, where torch keeps it, or of a module; else the function itself."""
    forward = _forward_of(function)
    written: Callable[..., Any] = getattr(function, "_init_fn", function) if forward is None else forward
    return written


def _forward_of(function: Any) -> Any:
    """What the call of a module calls; None of what is no module."""
    if "torch" not in sys.modules:
        return None
    import torch

    return function.forward if isinstance(function, torch.nn.Module) else None


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
    scripted = isinstance(function, (torch.jit.ScriptFunction, torch.ScriptMethod))
    return function.schema if scripted else None


def _parameter(argument: Any) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY if argument.kwarg_only else inspect.Parameter.POSITIONAL_OR_KEYWORD
    default = argument.default_value if argument.has_default_value() else inspect.Parameter.empty
    return inspect.Parameter(argument.name, kind, default=default)
