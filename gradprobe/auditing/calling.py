"""Calling: a reference as its author calls it, by its parameters' names, in torch or numpy, in one of many shapes."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..model.failures import UsageFailure
from ..model.intermediates import MATRIX_OF, lookup
from ..source.text import PythonSource
from ..targets.find import FoundFunction
from ..targets.naming import plain_function
from .axes import AXES, LETTERS, fits, settled, shaped
from .forms import Array
from .names import parameter_named, returned_names, role_of, size_named
from .watching import ReferenceWatch, Value, as_array, module_of, watched

_ORDERS = {
    1: (("O",), ("dQ",), ("dV",), ("dK",)), 2: (("O", "LSE"), ("dQ", "dK"), ("dK", "dV")),
    3: (("dQ", "dK", "dV"), ("dV", "dQ", "dK"), ("dK", "dV", "dQ"), ("dV", "dK", "dQ")),
    4: (("O", "dQ", "dK", "dV"), ("dQ", "dK", "dV", "O"), ("dQ", "dK", "dV", "dP")),
}  # fmt: skip


@dataclass(frozen=True)
class CallConvention:
    """How a reference is called, and what it does by itself."""

    library: str
    """torch or numpy."""
    shapes: str
    """One of SHAPES."""
    mask: str = ""
    """Of one that takes a mask, what True in it means: "keep" or "hide"; "additive" of one of -inf."""
    leaves: bool = False
    """Whether its inputs require grad."""
    swapped: tuple[str, str] | None = None
    """Two inputs, each given for the other."""
    unknown: bool | None = None
    """What is given for parameters whose names say nothing."""


@dataclass(frozen=True)
class Called:
    """What came of one call."""

    results: Mapping[str, Tensor]
    """By intermediate, in [B, H, L, D] or the like, in the function's dtype."""
    order: str
    """Where the names of the results come from."""
    values: list[Value] = field(default_factory=list)
    conventions: tuple[str, ...] = ()
    """What of its intermediates goes by another convention, and is left out of its results."""
    overwritten: tuple[str, ...] = ()
    """The inputs that it changed."""
    is_mapping: bool = False
    """Whether it returned a dict whose keys are all names of intermediates."""


@dataclass(frozen=True)
class Callee:
    """A function that may be a reference."""

    found: FoundFunction

    @property
    def function(self) -> Callable[..., Any]:
        return self.found.function

    @property
    def word(self) -> str:
        return self.found.word

    @cached_property
    def source(self) -> PythonSource | None:
        module = module_of(self.function)
        if module is None:
            return None
        with open(module.__file__ or "", encoding="utf-8") as file:
            return PythonSource(module.__file__ or "", file.read())

    @cached_property
    def takes(self) -> dict[str, str]:
        """Canonical name -> the parameter's own.

        Raises:
            UsageFailure: nothing can be passed for a parameter, or it takes no q, k and v.
        """
        found: dict[str, str] = {}
        for name in _signature(self):
            known = parameter_named(name)
            if known is not None and known not in found:
                found[known] = name
        if missing := [name for name in ("q", "k", "v") if name not in found]:
            raise UsageFailure(f"reference {self.word!r} does not take {', '.join(missing)}", "name them q, k and v")
        return found

    @cached_property
    def unknown(self) -> tuple[str, ...]:
        """The required parameters whose names say nothing, or what another one's says."""
        required = [name for name, one in _signature(self).items() if one.default is one.empty]
        known = {*self.takes.values(), *_ALWAYS}
        return tuple(name for name in required if name not in known and size_named(name) is None)

    @property
    def has_width(self) -> bool:
        """Whether it is told the heads, so that its tensors may have all of them in one axis."""
        return any(size_named(name) == "h" for name in _signature(self))

    @property
    def is_backward(self) -> bool:
        return "do" in self.takes

    @cached_property
    def libraries(self) -> tuple[str, ...]:
        """torch, numpy or both, the likelier first."""
        plain = plain_function(self.function)
        code, scope = getattr(plain, "__code__", None), getattr(plain, "__globals__", {})
        used = {scope[name].__name__ for name in code.co_names if inspect.ismodule(scope.get(name))} if code else set()
        return ("numpy", "torch") if "numpy" in used and not any(name.startswith("torch") for name in used) else (
            ("torch",) if any(name.startswith("torch") for name in used) else ("torch", "numpy")
        )  # fmt: skip

    @cached_property
    def masks(self) -> tuple[str, ...]:
        """What a mask may mean, where it takes one and no causal."""
        takes_mask = "mask" in self.takes or "mask" in self.takes.get("bias", "")
        return ("keep", "hide", "additive", "") if takes_mask and "causal" not in self.takes else ("",)

    def call(
        self, how: CallConvention, values: Mapping[str, Tensor], options: Mapping[str, Any], *, watch: bool = False
    ) -> Called:
        """Calls it.

        Args:
            values: q, k, v, do and what a forward left, each [B, H, L, D] or the like.
            options: causal, scale and others that it may take.

        Raises:
            Exception: whatever it raises; TypeError where it returns nothing that can be named.
        """
        arguments = self._arguments(how, values, options)
        leaves = {name: arguments[self.takes[name]] for name in ("q", "k", "v")}
        before = _copies(arguments)
        watching = watched(self.function) if watch else nullcontext(ReferenceWatch())
        with warnings.catch_warnings(), np.errstate(all="ignore"), watching as seen:
            warnings.simplefilter("ignore")
            result = self.function(**arguments)
            found, order = self._named(result, how, values)
            if not self.is_backward:
                found |= _through_autograd(found, leaves, values["do"], how)
        named = isinstance(result, Mapping) and all(lookup(str(key)) is not None for key in result)
        results = {name: settled(one.detach(), name, how.shapes, values["q"]) for name, one in found.items()}
        after = _copies(arguments)
        changed = tuple(name for name in before if not np.array_equal(before[name], after[name], equal_nan=True))
        return Called(results, order, seen.last(), overwritten=changed, is_mapping=named)

    def output(self, how: CallConvention, values: Mapping[str, Tensor], options: Mapping[str, Any]) -> Tensor:
        """O of a call whose inputs are leaves of autograd, or follow from some, in [B, H, L, D].

        Raises:
            Exception: whatever it raises; TypeError where it returns no O.
        """
        arguments = self._arguments(how, values, options, in_place=True)
        with warnings.catch_warnings(), torch.enable_grad():
            warnings.simplefilter("ignore")
            found, _ = self._named(self.function(**arguments), how, values)
        if "O" not in found:
            raise TypeError("it returns no O")
        return settled(found["O"], "O", how.shapes, values["q"])

    def _arguments(
        self, how: CallConvention, values: Mapping[str, Tensor], options: Mapping[str, Any], *, in_place: bool = False
    ) -> dict[str, Any]:
        """The arguments by the function's own names; with `in_place` they belong to the graph of the values."""
        given: dict[str, Any] = {}
        for name, own in self.takes.items():
            source = _other(name, how.swapped)
            if source in values and source in LETTERS:
                tensor = shaped(values[source], LETTERS[source], how.shapes)
                needs = (how.leaves or not self.is_backward) and name in ("q", "k", "v")
                if how.library == "numpy":
                    given[own] = tensor.detach().cpu().numpy().copy()
                else:
                    given[own] = tensor if in_place else tensor.detach().clone().requires_grad_(needs)
            elif options.get(name) is not None:
                given[own] = options[name]
        if how.mask and options.get("causal"):
            given[self.takes.get("mask", self.takes.get("bias", ""))] = _mask(how, values["q"])
        sizes = dict(zip("bhmd", values["q"].shape, strict=True))
        for name, parameter in _signature(self).items():
            if name not in given and parameter.default is parameter.empty:
                axis = size_named(name)
                given[name] = _ALWAYS[name] if name in _ALWAYS else sizes[axis] if axis else how.unknown
        return given

    def _named(self, result: Any, how: CallConvention, values: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], str]:
        """The results by name, and where the names come from."""
        if hasattr(result, "_asdict"):
            result = result._asdict()
        if isinstance(result, Mapping):
            found = {role: _tensor(value) for key, value in result.items() if (role := role_of(str(key))) in AXES}
            return {str(role): value for role, value in found.items() if value is not None}, "the keys of its dict"
        parts = [_tensor(part) for part in _flat(result)]
        for names in returned_names(plain_function(self.function), self.source):
            roles = [role_of(name) if name else None for name in names]
            if len(roles) == len(parts) and len({r for r in roles if r}) == len(roles):
                named = {
                    role: part for role, part in zip(roles, parts, strict=True) if part is not None and role in AXES
                }
                return {str(role): part for role, part in named.items()}, "the names in its return statement"
        tensors = [part for part in parts if part is not None]
        if not tensors:
            raise TypeError(f"it returned {type(result).__name__}, which holds no tensor")
        orders = (("O",),) if not self.is_backward and len(tensors) == 1 else _ORDERS.get(len(tensors), ())
        orders = tuple(("O", *order[1:]) for order in orders) if not self.is_backward else orders
        fitting = [
            order
            for order in orders
            if all(fits(one, name, how.shapes, values["q"]) for one, name in zip(tensors, order, strict=True))
        ]
        if not fitting:
            raise TypeError(f"it returned {len(tensors)} values whose names cannot be told")
        best = max(fitting, key=lambda order: _count_right(tensors, order, how, values))
        return dict(zip(best, tensors, strict=True)), f"trying: ({', '.join(best)})"


_ALWAYS: dict[str, Any] = {"dtype": torch.float64, "device": "cpu", "eps": 0.0, "dropout": 0.0, "dropout_p": 0.0}


def _copies(arguments: Mapping[str, Any]) -> dict[str, Array]:
    """The arrays among the arguments as they are now."""
    arrays = {name: as_array(argument) for name, argument in arguments.items()}
    return {name: array.copy() for name, array in arrays.items() if array is not None}


def _signature(callee: Callee) -> Mapping[str, inspect.Parameter]:
    try:
        found = inspect.signature(callee.function).parameters
    except (ValueError, TypeError):
        raise UsageFailure(f"reference {callee.word!r} has no readable signature", "wrap it in a function") from None
    kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    return {name: one for name, one in found.items() if one.kind not in kinds and name not in ("self", "ctx")}


def _other(name: str, swapped: tuple[str, str] | None) -> str:
    """The input whose values a parameter is given."""
    if swapped is None or name not in swapped:
        return name
    return swapped[1] if name == swapped[0] else swapped[0]


def _mask(how: CallConvention, q: Tensor) -> Any:
    keep = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool, device=q.device).tril()
    mask = {
        "keep": keep,
        "hide": ~keep,
        "additive": torch.zeros(keep.shape, dtype=q.dtype, device=q.device).masked_fill(~keep, -torch.inf),
    }
    return mask[how.mask].cpu().numpy() if how.library == "numpy" else mask[how.mask]


def _tensor(value: Any) -> Tensor | None:
    if isinstance(value, np.ndarray) and value.dtype.kind == "f":
        return torch.from_numpy(np.array(value))
    return value if isinstance(value, Tensor) and value.is_floating_point() else None


def _flat(result: Any) -> Iterator[Any]:
    if isinstance(result, (tuple, list)):
        for part in result:
            yield from _flat(part)
    else:
        yield result


def _count_right(
    tensors: list[Tensor], order: tuple[str, ...], how: CallConvention, values: Mapping[str, Tensor]
) -> int:
    """How many of the results are those of their names; values hold what is due where it is known."""
    pairs = (
        (settled(one, name, how.shapes, values["q"]), values.get(f"due {name}"))
        for one, name in zip(tensors, order, strict=True)
    )
    return sum(due is not None and is_near(one, due) for one, due in pairs)


def is_near(tensor: Tensor, due: Tensor) -> bool:
    """Whether two are the same to the digits of float32, or to those that the first has."""
    if tensor.shape != due.shape:
        return False
    most, digits = float(due.abs().max()) or 1.0, 4 * torch.finfo(tensor.dtype).eps
    return bool((tensor.double() - due).abs().max() <= max(1e-4, digits) * most)


def _through_autograd(
    found: dict[str, Tensor], leaves: Mapping[str, Any], do: Tensor, how: CallConvention
) -> dict[str, Tensor]:
    """The gradients of a forward, where it is one of torch that can be differentiated."""
    output = found.get("O")
    if output is None or not output.requires_grad:
        return {}
    given = shaped(do, "bhld", how.shapes).to(output.dtype)
    if given.shape != output.shape:
        return {}
    gradients = torch.autograd.grad(output, list(leaves.values()), given, allow_unused=True, retain_graph=True)
    return {name: one for name, one in zip(MATRIX_OF, gradients, strict=True) if one is not None}
