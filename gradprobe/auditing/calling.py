"""A reference called in its author's own way, in torch or numpy, and in one of many shapes."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..frontends import plain_function
from ..model.assignment import given_back, taken
from ..targets.bind import as_tensors, intermediate_named, returned_names
from ..targets.find import Target

SHAPES = ("bhld", "hld", "ld", "blhd", "lhd")
"""The axes of q, k, v and dO, the likelier first."""
ORDERS = {
    1: "dQ|dV|dK",
    2: "dQ dK|dK dV",
    3: "dQ dK dV|dV dQ dK|dK dV dQ|dV dK dQ",
    4: "O dQ dK dV|dQ dK dV O",
}
"""What a tuple may be, by its length, the likelier first."""
RESULTS = {"O": "do", "dQ": "q", "dK": "k", "dV": "v"}
"""What is judged, by the input that has its shape."""
_OF_HEADS = {"q", "k", "v", "do", "o", "lse", "delta"}


@dataclass(frozen=True)
class CallConvention:
    library: str = "torch"
    shapes: str = "bhld"
    mask: str = ""
    """What True in its mask means: "keep" or "hide"; "additive" of one of -inf."""
    leaves: bool = False
    order: str = ""
    causal: bool = False
    scale: float | None = None
    """None for 1 / sqrt(head dim)."""

    @property
    def setting(self) -> str:
        scaled = f" scale={self.scale:g}" if self.scale is not None else ""
        return ("causal" if self.causal else "not causal") + scaled


class ReferenceCall:
    """A reference as a function of tensors [B, H, L, D] that gives a dict of RESULTS."""

    def __init__(self, target: Target, how: CallConvention) -> None:
        functools.update_wrapper(self, target.function)
        self._function, self._how = target.function, how
        takes = dict(target.takes)
        self._mask = takes.pop("mask" if "mask" in takes else "bias") if how.mask else ""
        if how.mask or how.causal:
            takes.setdefault("causal", "causal")
        if how.scale is not None:
            takes.setdefault("scale", "scale")
        self._own = target.takes
        required = target.required & takes.keys()
        self.target = replace(target, function=self, takes=takes, required=required)
        self.orders: list[str] = []
        """What the latest results may be, where nothing but their order tells."""
        self.unfit: dict[str, Tensor] = {}

    def __call__(self, **given: Any) -> dict[str, Tensor]:
        values = {name: given[own] for name, own in self.target.takes.items() if own in given}
        self.unfit, self.orders = {}, []
        with torch.device(values["q"].device):  # what it makes lies beside what it is given
            return self._each(values, 0)

    def _each(self, given: dict[str, Any], axis: int) -> dict[str, Tensor]:
        if axis == 2:
            return self._once(given)
        if "bh"[axis] in self._how.shapes:
            return self._each(given, axis + 1)
        parts = list[dict[str, Tensor]]()
        for at in range(given["q"].shape[axis]):
            of_part = {name: given[name].narrow(axis, at, 1) for name in _OF_HEADS & given.keys()}
            parts.append(self._each(given | of_part, axis + 1))
        return {name: torch.cat([part[name] for part in parts], axis) for name in parts[0]}

    def _once(self, given: Mapping[str, Any]) -> dict[str, Tensor]:
        found = dict[str, Tensor]()
        for name, value in self._named(self._function(**self._arguments(given))).items():
            result = given_back(value, name, self._how.shapes).to(given["q"])
            due = given[RESULTS[name]].shape if self.target.is_backward else result.shape
            (found if result.shape == due else self.unfit)[name] = result
        if self.unfit and not found:
            name, result = next(iter(self.unfit.items()))
            due = given[RESULTS[name]].shape
            raise TypeError(f"it returned {name} of {list(result.shape)} for {list(due)}")
        return found

    def _arguments(self, given: Mapping[str, Any]) -> dict[str, Any]:
        how, arguments = self._how, dict[str, Any]()
        for name in self._own.keys() & given.keys():
            value = given[name]
            if isinstance(value, Tensor):
                value = taken(value, name, how.shapes).contiguous()
                if how.leaves and name in ("q", "k", "v"):
                    value = value.detach().requires_grad_()
            arguments[self._own[name]] = value
        if how.mask and given.get("causal"):
            arguments[self._mask] = _causal_mask(how.mask, given["q"])
        for own, value in arguments.items() if how.library == "numpy" else ():
            if isinstance(value, Tensor):
                arguments[own] = value.detach().cpu().numpy()
        return arguments

    def _named(self, result: Any) -> dict[str, Tensor]:
        result = result._asdict() if hasattr(result, "_asdict") else result
        if isinstance(result, Mapping):
            names, parts = [*map(str, result)], [*result.values()]
        else:
            parts = [*result] if isinstance(result, (tuple, list)) else [result]
            names = self._names(len(parts))
        found = dict[str, Tensor]()
        for name, part in zip(map(intermediate_named, names), as_tensors(parts), strict=True):
            if name in RESULTS and isinstance(part, Tensor):
                found[name] = part
        return found

    def _names(self, count: int) -> list[str]:
        for names in returned_names(plain_function(self)):
            if count == len(names) == len({*map(intermediate_named, names)} - {""}):
                return names
        if not self.target.is_backward:
            return ["O", *[""] * (count - 1)]
        if count not in ORDERS:
            raise TypeError(f"it returned {count} values whose names cannot be told")
        self.orders = ORDERS[count].split("|")
        return (self._how.order or self.orders[0]).split()


def _causal_mask(meaning: str, q: Tensor) -> Tensor:
    keep = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool, device=q.device).tril()
    if meaning == "additive":
        return q.new_zeros(keep.shape).masked_fill(~keep, -torch.inf)
    return ~keep if meaning == "hide" else keep
