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
    """The arguments of one call."""

    tensors: Mapping[str, Tensor]
    options: Mapping[str, Any]
    """As plain data, without None and values that mean nothing."""
    notes: tuple[str, ...]
    """Which arguments are left out."""


class Reader:
    """Reads the calls of one function."""

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
        named = [name for name in TENSORS if isinstance(given.get(name), torch.Tensor)]
        tensors = {name: given[name] for name in named}
        missing = [name for name in ("q", "k", "v") if name not in tensors]
        if missing:
            raise UnfitCall(f"{self.name} was called without a tensor for {', '.join(missing)}")
        for name, tensor in tensors.items():
            if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.is_meta:
                kind = type(tensor).__name__
                raise UnfitCall(
                    f"{self.name} was called with {name} of type {kind}, which is not kept"
                )
        if tensors["q"].is_cuda and torch.cuda.is_current_stream_capturing():
            raise UnfitCall(f"a call of {self.name} inside a CUDA graph's capture was not kept")
        tensors |= {name: self.in_order(tensors[name]) for name in _ORDERED if name in tensors}
        options, more = self._options(given, tensors)
        return RecordedCall(tensors, options, (*notes, *more))

    def in_order(self, tensor: Tensor) -> Tensor:
        """A tensor of four axes as [B, H, L, D], in its own memory."""
        return tensor.transpose(1, 2) if self.order == "blhd" and tensor.dim() == 4 else tensor

    def _by_canonical_name(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[dict[str, Any], tuple[str, ...]]:
        import torch

        given: dict[str, Any] = {}
        notes = []
        for own, value in self._arguments(args, kwargs).items():
            name = canonical_name(own)
            is_tensor = isinstance(value, torch.Tensor)
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
        return given, tuple(notes)

    def _arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments by the function's own names, including defaults and those in **kwargs."""
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        flat: dict[str, Any] = {}
        for name, value in bound.arguments.items():
            several = self._signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD
            flat |= value if several else {name: value}
        return flat

    def _options(
        self, given: Mapping[str, Any], tensors: Mapping[str, Tensor]
    ) -> tuple[dict[str, Any], tuple[str, ...]]:
        options = dict[str, Any]()
        for name in OPTIONS:
            if given.get(name) is not None and (value := _plain(name, given[name])) is not None:
                options[name] = value
        if options.get("causal") and tensors["q"].shape[-2] != tensors["k"].shape[-2]:
            options |= self._fixed
        if "dropout" in options and "keep" not in tensors:
            del options["dropout"]
            why = "which entries it dropped cannot be known"
            return options, (f"dropout is left out of what is kept: {why}",)
        return options, ()


def _plain(name: str, value: Any) -> Any:
    """An option's value as plain data; None where it means nothing."""
    if name == "causal":
        return bool(value)
    if name in ("align", "family"):
        return str(value)
    if name == "window":
        if not isinstance(value, (tuple, list)) or len(value) != 2:
            raise UnfitCall(f"a window of {value!r} cannot be kept: it must be (left, right)")
        left, right = (int(side) for side in value)
        return (left, right) if (left, right) != (-1, -1) else None
    number = float(value)
    return number if name == "scale" or (number and math.isfinite(number)) else None
