"""Callables that hide the names of their parameters: torch's own attention, an autograd.Function and its `apply`."""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any, TypeGuard

_TORCH_S_OWN = "scaled_dot_product_attention"


def readable(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function itself, or an equal one that names its parameters."""
    if _is_torch_s_own(function):
        return _torch_s_own(function)
    owner = function if isinstance(function, type) else getattr(function, "__self__", None)
    if is_autograd_function(owner) and (owner is function or getattr(function, "__name__", "") == "apply"):
        return _applied(owner)
    return function


def is_autograd_function(thing: object) -> TypeGuard[Any]:
    """Whether it is a class with a forward and a backward, whose `apply` autograd differentiates."""
    if "torch" not in sys.modules or not isinstance(thing, type):
        return False
    from torch.autograd import Function

    return issubclass(thing, Function) and thing is not Function


def conventions(function: Callable[..., Any]) -> Mapping[str, Any]:
    """The options that a function is known to fix, whatever its arguments are."""
    return {"align": "top-left"} if _is_torch_s_own(function) else {}


def _is_torch_s_own(function: Callable[..., Any]) -> bool:
    return isinstance(function, types.BuiltinFunctionType) and function.__name__ == _TORCH_S_OWN


def _torch_s_own(function: Callable[..., Any]) -> Callable[..., Any]:
    def attention(  # noqa: PLR0913, PLR0917 - torch's own parameters
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Any:
        grouped = enable_gqa or query.shape[1] != key.shape[1]
        options = {"dropout_p": dropout_p, "is_causal": is_causal, "scale": scale, "enable_gqa": grouped}
        return function(query, key, value, attn_mask, **options)

    return _naming(attention, inspect.signature(attention), function)


def _applied(owner: Any) -> Callable[..., Any]:
    """`Function.apply` by name: with the parameters of `forward`, without the ctx that some take first."""
    from torch.autograd import Function

    signature = inspect.signature(owner.forward)
    if owner.setup_context is Function.setup_context:
        signature = signature.replace(parameters=list(signature.parameters.values())[1:])

    def by_name(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return owner.apply(*bound.args)

    return _naming(by_name, signature, owner.forward)


def _naming(
    function: Callable[..., Any], signature: inspect.Signature, original: Callable[..., Any]
) -> Callable[..., Any]:
    """Gives the function a signature, and the name and source of the original."""
    functools.update_wrapper(function, original)
    vars(function)["__signature__"] = signature
    return function
