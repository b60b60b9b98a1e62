"""Reads a call of a watched function: its tensors by their names here, and its options as plain data."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...inputs.contents import OPTIONS, TENSORS
from ...targets.naming import canonical_name, conventions, readable

if TYPE_CHECKING:
    from torch import Tensor

# The orders of axes that a function may use.
ORDERS = ("bhld", "blhd")
_ORDERED = ("q", "k", "v", "do", "o")


class UnfitCall(Exception):
    """A call cannot be kept. The message says why."""


@dataclass(frozen=True)
class RecordedCall:
    tensors: Mapping[str, Tensor]
    """Those of four axes as [B, H, L, D], in the program's own memory."""
    options: Mapping[str, Any]
    """As plain data, without None and values that mean nothing."""
    notes: tuple[str, ...]
    """Which arguments are left out."""


class Reader:
    def __init__(self, function: Callable[..., Any], name: str, order: str) -> None:
        self.name, self.order = name, order
        self._signature = inspect.signature(readable(function))
        self._fixed = conventions(function)

    def read(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> RecordedCall:
        """A call's tensors and options.

        Raises:
            UnfitCall: q, k or v is missing, or the values of a tensor cannot be read.
            TypeError: the function does not take these arguments.
        """
        import torch

        given, notes = self._by_canonical_name(args, kwargs)
        tensors = {name: given[name] for name in TENSORS if torch.is_tensor(given.get(name))}
        if missing := [name for name in ("q", "k", "v") if name not in tensors]:
            raise UnfitCall(f"{self.name} was called without a tensor for {', '.join(missing)}")
        for name, tensor in tensors.items():
            if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.is_meta:
                what = f"{name} of type {type(tensor).__name__}"
                raise UnfitCall(f"{self.name} was called with {what}, which is not kept")
        if tensors["q"].is_cuda and torch.cuda.is_current_stream_capturing():
            raise UnfitCall(f"a call of {self.name} inside a CUDA graph's capture was not kept")
        tensors |= {name: self.in_order(tensors[name]) for name in _ORDERED if name in tensors}
        plain = {name: _plain(name, given.get(name)) for name in OPTIONS}
        options = {name: value for name, value in plain.items() if value is not None}
        if options.get("causal") and tensors["q"].shape[-2] != tensors["k"].shape[-2]:
            options |= self._fixed
        if "keep" not in tensors and options.pop("dropout", None):
            why = "which entries it dropped cannot be known"
            notes.append(f"dropout is left out of what is kept: {why}")
        return RecordedCall(tensors, options, tuple(notes))

    def in_order(self, tensor: Tensor) -> Tensor:
        """A tensor of four axes as [B, H, L, D], in its own memory."""
        return tensor.transpose(1, 2) if self.order == "blhd" and tensor.dim() == 4 else tensor

    def _by_canonical_name(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[dict[str, Any], list[str]]:
        import torch

        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        arguments, given, notes = {**bound.arguments}, dict[str, Any](), list[str]()
        for parameter in self._signature.parameters.values():
            if parameter.kind is inspect.Parameter.VAR_KEYWORD:
                arguments |= arguments.pop(parameter.name)
        for own, value in arguments.items():
            name, is_tensor = canonical_name(own), torch.is_tensor(value)
            if name in ("bias", "mask") and is_tensor:
                name = "mask" if value.dtype == torch.bool else "bias"
            if name == "cu_seqlens":
                given |= {"cu_seqlens_q": value, "cu_seqlens_k": value}
            elif name is not None:
                given[name] = value
            is_other = name in TENSORS and value is not None and not is_tensor
            if is_other or (name is None and is_tensor):
                why = "it is no tensor of a known name"
                notes.append(f"the argument {own} of {self.name} is not kept: {why}")
        return given, notes


def _plain(name: str, value: Any) -> Any:
    """An option's value as plain data; None where it means nothing."""
    if value is None:
        return None
    if name == "causal":
        return bool(value)
    if name in ("align", "family"):
        return str(value)
    if name == "window":
        if not isinstance(value, (tuple, list)) or len(value) != 2:
            raise UnfitCall(f"a window of {value!r} cannot be kept: it must be (left, right)")
        window = tuple(map(int, value))
        return window if window != (-1, -1) else None
    number = float(value)
    return number if name == "scale" or (number and math.isfinite(number)) else None
