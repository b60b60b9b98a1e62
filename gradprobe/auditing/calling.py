"""Calling: a reference as its author calls it, by its parameters' names, in torch or numpy, in one of many shapes."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..frontends.python import plain_function
from ..model.failures import UsageFailure
from ..model.intermediates import MATRIX_OF, lookup
from ..targets.bind import returned_names
from ..targets.find import FoundFunction
from ..targets.naming import canonical_name
from .formulas import role_of

Values = Mapping[str, Tensor]
MERGED = "bl(hd)"
SHAPES = ("bhld", "hld", "ld", "blhd", "lhd", MERGED)
"""The order of axes in which a reference may take q, k, v and dO, in which they are tried."""
LETTERS = {"q": "bhld", "k": "bhld", "v": "bhld", "do": "bhld", "o": "bhld", "lse": "bhl", "delta": "bhl", "P": "bhlL"}
AXES = {name: "bhld" for name in ("O", "dQ", "dK", "dV")} | {name: "bhl" for name in ("LSE", "delta")}
AXES |= {name: "bhlL" for name in ("P", "S", "dP", "dS")}
"""Of each result."""
# What targets are never given by these names, and people call it so in references.
_CALLED = {
    "do": "grad g dy d_out grad_outputs upstream",
    "P": "p attn att probabilities probs weights attn_weights",
    "lse": "l",
    "q": "queries",
    "k": "keys",
    "v": "values",
    "o": "y",
}
_COUNTED = {
    "h": "h heads n_heads num_heads nheads",
    "b": "b batch bs batch_size bsz",
    "d": "d head_dim d_head d_k dim_head",
    "m": "seq_len seqlen n_ctx length t",
}
_PARAMETERS = {word: name for name, words in _CALLED.items() for word in words.split()}
_SIZES = {word: axis for axis, words in _COUNTED.items() for word in words.split()}
# What stands behind the name of an input in much code.
_ENDINGS = ("_in", "_ref", "_np", "_t", "_f", "_mat", "_tensor")
# What is returned without names, by how many there are, the likelier first.
_ORDERS = {1: "O|dQ|dV|dK", 2: "O LSE|dQ dK|dK dV", 3: "dQ dK dV|dV dQ dK|dK dV dQ|dV dK dQ",
           4: "O dQ dK dV|dQ dK dV O|dQ dK dV dP"}  # fmt: skip
_ORDERS_OF_FORWARD = {1: "O", 2: "O LSE", 3: "O LSE P"}
_ALWAYS: dict[str, Any] = {"dtype": torch.float64, "device": "cpu", "eps": 0.0, "dropout": 0.0, "dropout_p": 0.0}


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
    causal: bool = False
    scale: float | None = None
    """None for 1 / sqrt(head dim)."""

    @property
    def setting(self) -> str:
        """`not causal scale=0.3`: what is asked of it, or what it does by itself."""
        scaled = f" scale={self.scale:g}" if self.scale is not None else ""
        return ("causal" if self.causal else "not causal") + scaled


@dataclass(frozen=True)
class Called:
    """What came of one call."""

    results: Values
    """By intermediate, in [B, H, L, D] or the like, in the function's dtype."""
    order: str
    """Where the names of the results come from."""
    by_autograd: Values
    """The gradients of its O, where autograd has it."""
    is_mapping: bool = False
    """Whether it returned a dict whose keys are all names of intermediates."""


class Callee:
    """A function that may be a reference.

    Raises:
        UsageFailure: it takes no q, k and v, or its parameters cannot be read.
    """

    def __init__(self, found: FoundFunction) -> None:
        self.found, self.function, self.word = found, found.function, found.word
        self._parameters = _parameters(self.function, self.word)
        self.takes: dict[str, str] = {}
        """Canonical name -> the parameter's own, the first of several."""
        for name in self._parameters:
            if (known := _parameter_named(name)) is not None:
                self.takes.setdefault(known, name)
        required = [name for name, one in self._parameters.items() if one.default is one.empty]
        self.needs_bias = self.takes.get("bias") in required
        named = {*self.takes.values(), *_ALWAYS}
        self.unknown = [name for name in required if name not in named and name.lower() not in _SIZES]
        """The required parameters whose names say nothing, or what another one's says; they are given None."""
        is_told_heads = any(_SIZES.get(name.lower()) == "h" for name in self._parameters)
        self.shapes = SHAPES if is_told_heads else SHAPES[:-1]
        self.is_backward = "do" in self.takes
        takes_mask = "mask" in self.takes or "mask" in self.takes.get("bias", "")
        self.masks = ("keep", "hide", "additive", "") if takes_mask and "causal" not in self.takes else ("",)
        """What a mask may mean, where it takes one and no causal."""
        self.libraries = _libraries(self.function)
        if missing := [name for name in ("q", "k", "v") if name not in self.takes]:
            raise UsageFailure(f"reference {self.word!r} does not take {', '.join(missing)}", "name them q, k and v")

    def call(self, how: CallConvention, values: Values, options: Mapping[str, Any]) -> Called:
        """Calls it.

        Args:
            values: q, k, v, do and what a forward left, each [B, H, L, D] or the like; "due dQ" and so on help to name
                results.
            options: causal, scale and others that it may take.

        Raises:
            Exception: whatever it raises; TypeError where it returns nothing that can be named.
        """
        arguments = self._arguments(how, values, options)
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            result = self.function(**arguments)
            found, order = self._named(result, how, values)
            output, by_autograd = found.get("O"), dict[str, Tensor]()
            if output is not None and output.requires_grad:
                leaves = [arguments[self.takes[name]] for name in ("q", "k", "v")]
                do = _shaped(values["do"], "bhld", how.shapes)
                by_autograd = _differentiated(output, leaves, do)
        if not self.is_backward:
            found |= by_autograd
        is_mapping = isinstance(result, Mapping) and all(lookup(str(key)) is not None for key in result)
        parts = (_settled(part, how.shapes, values["q"]) for part in (found, by_autograd))
        return Called(next(parts), order, next(parts), is_mapping=is_mapping)

    def _arguments(self, how: CallConvention, values: Values, options: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments by the function's own names."""
        given: dict[str, Any] = {}
        for name, own in self.takes.items():
            if name in values and name in LETTERS:
                tensor = _shaped(values[name], LETTERS[name], how.shapes).detach().clone()
                needs = (how.leaves or not self.is_backward) and name in ("q", "k", "v")
                given[own] = tensor.requires_grad_(needs)
            elif (option := options.get(name)) is not None:
                given[own] = option
        if how.mask and options.get("causal"):
            given[self.takes.get("mask", self.takes.get("bias", ""))] = _mask(how.mask, values["q"])
        if how.library == "numpy":
            for own, value in given.items():
                given[own] = value.detach().cpu().numpy().copy() if isinstance(value, Tensor) else value
        sizes = dict(zip("bhmd", values["q"].shape, strict=True))
        for name, parameter in self._parameters.items():
            if name not in given and parameter.default is parameter.empty:
                given[name] = _ALWAYS[name] if name in _ALWAYS else sizes.get(_SIZES.get(name.lower(), ""))
        return given

    def _named(self, result: Any, how: CallConvention, values: Values) -> tuple[dict[str, Tensor], str]:
        """The results by name, and where the names come from."""
        result = result._asdict() if hasattr(result, "_asdict") else result
        if isinstance(result, Mapping):
            return _by_role([*map(str, result)], [*map(_tensor, result.values())]), "the keys of its dict"
        parts = [_tensor(part) for part in _flat(result)]
        for names in returned_names(plain_function(self.function)):
            if len(parts) == len(names) == len({role_of(name) for name in names} - {None}):
                return _by_role(names, parts), "the names in its return statement"
        tensors = [part for part in parts if part is not None]
        if not tensors:
            raise TypeError(f"it returned {type(result).__name__}, which holds no tensor")
        orders = _ORDERS if self.is_backward else _ORDERS_OF_FORWARD
        best, most = dict[str, Tensor](), -1
        for order in orders.get(len(tensors), "").split("|"):
            named = dict(zip(order.split(), tensors, strict=False))
            right = 0
            for name, tensor in _settled(named, how.shapes, values["q"]).items():
                due = values.get(f"due {name}")
                if due is not None and tensor.shape != due.shape:
                    right -= len(tensors) + 1  # which no order makes good
                right += due is not None and is_near(tensor, due)
            if right > most:
                best, most = named, right
        if not best:
            raise TypeError(f"it returned {len(tensors)} values whose names cannot be told")
        return best, f"trying: ({', '.join(best)})"


def _differentiated(output: Tensor, leaves: list[Tensor], do: Tensor) -> dict[str, Tensor]:
    """The gradients of O by autograd; none where its shape is another."""
    if output.shape != do.shape:
        return {}
    made = torch.autograd.grad(output, leaves, do.to(output.dtype), allow_unused=True, retain_graph=True)
    return {name: one for name, one in zip(MATRIX_OF, made, strict=True) if one is not None}


def _parameters(function: Callable[..., Any], word: str) -> dict[str, inspect.Parameter]:
    try:
        found = inspect.signature(function).parameters
    except (ValueError, TypeError):
        raise UsageFailure(f"reference {word!r} has no readable signature", "wrap it in a function") from None
    kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    return {name: one for name, one in found.items() if one.kind not in kinds and name not in ("self", "ctx")}


def _parameter_named(name: str) -> str | None:
    """The canonical name of what a parameter is: of an input or option, or P for saved probabilities."""
    word = name.lower().strip("_")
    ending = next((one for one in _ENDINGS if word.endswith(one)), "")
    word = word.removesuffix(ending)
    return canonical_name(name) or canonical_name(word) or _PARAMETERS.get(word)


def _libraries(function: Callable[..., Any]) -> tuple[str, ...]:
    """torch, numpy or both, the likelier first."""
    plain = plain_function(function)
    scope = getattr(plain, "__globals__", {})
    names = plain.__code__.co_names if hasattr(plain, "__code__") else ()
    used = {scope[name].__name__ for name in names if inspect.ismodule(scope.get(name))}
    if any(name.startswith("torch") for name in used):
        return ("torch",)
    return ("numpy", "torch") if "numpy" in used else ("torch", "numpy")


def _mask(meaning: str, q: Tensor) -> Tensor:
    keep = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool, device=q.device).tril()
    if meaning == "additive":
        return torch.zeros(keep.shape, dtype=q.dtype, device=q.device).masked_fill(~keep, -torch.inf)
    return ~keep if meaning == "hide" else keep


def _by_role(names: list[str], parts: list[Tensor | None]) -> dict[str, Tensor]:
    found = {}
    for name, part in zip(names, parts, strict=True):
        role = role_of(name)
        if part is not None and role in AXES:
            found[role] = part
    return found


def _tensor(value: Any) -> Tensor | None:
    if isinstance(value, np.ndarray) and value.dtype.kind == "f":
        return torch.from_numpy(np.array(value))
    return value if isinstance(value, Tensor) and value.is_floating_point() else None


def _flat(result: Any) -> Iterator[Any]:
    for part in result if isinstance(result, (tuple, list)) else ():
        yield from _flat(part)
    if not isinstance(result, (tuple, list)):
        yield result


def is_near(tensor: Tensor, due: Tensor) -> bool:
    """Whether two are the same to the digits of float32, or to those that the first has."""
    if tensor.shape != due.shape:
        return False
    most, digits = float(due.abs().max()) or 1.0, 4 * torch.finfo(tensor.dtype).eps
    return bool((tensor.double() - due).abs().max() <= max(1e-4, digits) * most)


# --- the axes of tensors


def _own(axes: str, shapes: str) -> str:
    """The axes of a tensor bhld, or bhlL of a matrix, as a function of these shapes has it."""
    return shapes if axes == "bhld" else "".join(letter for letter in axes if letter in shapes + "L")


def _shaped(tensor: Tensor, axes: str, shapes: str) -> Tensor:
    """A tensor as a function of these shapes takes it."""
    if shapes == MERGED:
        return tensor.transpose(1, 2).flatten(2) if axes == "bhld" else tensor
    own = _own(axes, shapes)
    lacking = [letter for letter in axes if letter not in own]
    moved = tensor.permute([axes.index(letter) for letter in (*lacking, *own)])
    return moved[(0,) * len(lacking)].contiguous()


def _settled(results: Values, shapes: str, q: Tensor) -> dict[str, Tensor]:
    """Results with the axes of the table of intermediates; as they came where they have another shape."""
    b, h, m, d = q.shape
    sizes, found = {"b": b, "h": h, "l": m, "d": d, "L": m}, dict[str, Tensor]()
    for name, result in results.items():
        tensor, axes = result.detach(), AXES[name]
        own = _own(axes, shapes)
        if shapes == MERGED and axes == "bhld":
            is_whole = tensor.shape == (b, m, h * d)
            found[name] = tensor.unflatten(2, (h, -1)).transpose(1, 2) if is_whole else tensor
            continue
        shape = tuple(sizes[letter] for letter in own)
        if tensor.shape == shape or (axes == "bhl" and tensor.shape == (*shape, 1)):
            tensor = tensor.reshape(shape).permute([own.index(letter) for letter in axes if letter in own])
            tensor = tensor[tuple(slice(None) if letter in own else None for letter in axes)]
        found[name] = tensor
    return found


def in_words(shapes: str) -> str:
    """`B, H, L, D`, or `B, L, H*D`."""
    return "B, L, H*D" if shapes == MERGED else ", ".join(shapes.upper())
