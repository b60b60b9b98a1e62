"""Keeps a function's inputs and dO, once for each shape and layout, while the program runs as before."""

from __future__ import annotations

import functools
import hashlib
import inspect
import math
import os
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ...inputs.saved import OPTIONS, TENSORS, SavedInputs, save
from ...inputs.tensor_layouts import placements_of
from ...model.failures import UsageFailure
from ...targets.naming import canonical_name, conventions, readable
from .watched_calls import ENDING, CapturePlan, WatchedCalls

if TYPE_CHECKING:
    from torch import Tensor

_ORDERED = ("q", "k", "v", "do", "o")
# How many calls of one form are copied in the hope of a new layout of dO, which is known only after the copy.
PATIENCE = 8


class UnfitCall(Exception):
    """Why a call cannot be kept."""


@dataclass
class _CallForm:
    key: tuple[Any, ...]
    copies: int = 0
    """Since the last layout of dO that was new."""
    layouts: set[Any] = field(default_factory=set)
    """The layouts of dO that were kept, or came beyond the limit."""


class WatchedFunction:
    """Watches a function; the program calls `wrapped` in its place.

    Results, gradients and random numbers stay as they are. No failure in here reaches the program; `seen` counts each.
    """

    def __init__(
        self, function: Callable[..., Any], name: str, how: CapturePlan, seen: WatchedCalls
    ) -> None:
        self.name, self.seen, self._how = name, seen, how
        self.on_change: Callable[[], None] = lambda: None
        self._forms: dict[tuple[Any, ...], _CallForm] = {}
        self._signature = inspect.signature(readable(function))
        self._fixed = conventions(function)
        self.wrapped = self._wrap(function)
        self._begin_anew()
        os.register_at_fork(after_in_child=self._begin_anew)

    def _begin_anew(self) -> None:
        """Counts from nothing, with a lock that no other thread can hold: in a forked child there is no other."""
        self._lock, self.seen.calls, self.seen.left_out = threading.RLock(), 0, {}

    @property
    def _is_full(self) -> bool:
        return len(self.seen.kept) >= self._how.keep

    def _wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            import torch  # only now: the function may be one of torch's own, wrapped while torch is imported

            # Else the watching would become part of the compiled program.
            if torch.compiler.is_compiling():
                return function(*args, **kwargs)
            pending = self._guarded(self._before, torch.is_grad_enabled(), args, kwargs)
            output = function(*args, **kwargs)
            if pending is not None:
                self._guarded(self._after, *pending, output)
            return output

        return wrapped

    def _guarded(self, act: Callable[..., Any], *args: Any) -> Any:
        """Runs one step of the watching outside the program's graph, and catches what it raises."""
        import torch

        with self._lock:
            try:
                with torch.no_grad():
                    return act(*args)
            except Exception as error:
                words = str(error)
                if not isinstance(error, UnfitCall):
                    words = f"watching {self.name} failed: {type(error).__name__}: {error}"
                if self.seen.leave_out(words):
                    self.on_change()
                return None

    def _before(
        self, grad_enabled: bool, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[_CallForm, SavedInputs | None] | None:
        """The form of a call and a copy of its inputs, None where no more of them are copied."""
        self.seen.calls += 1
        if self.seen.calls == 1:
            self.on_change()
        tensors, options = self._read(args, kwargs)
        grad = tensors.pop("do", None)
        needs_grad = grad_enabled and any(tensor.requires_grad for tensor in tensors.values())
        if grad is None and not needs_grad:
            raise UnfitCall("a call without gradients: no_grad, or no input needs one")
        placements = placements_of(tensors)
        key = (_layout(tensors), tuple(sorted(options.items())))
        form = self._forms.setdefault(key, _CallForm(key))
        if grad is not None:  # the function is itself a backward, whose dO is an argument
            self._take_grad(form, SavedInputs(tensors, placements, options), grad)
            return None
        if self._is_full or form.copies >= PATIENCE:
            return form, None
        form.copies += 1
        return form, SavedInputs(_copies(tensors), placements, options)

    def _after(self, form: _CallForm, inputs: SavedInputs | None, output: Any) -> None:
        import torch

        output = output[0] if isinstance(output, (tuple, list)) and output else output
        if not isinstance(output, torch.Tensor) or not output.requires_grad:
            what = f"{type(output).__name__} and not first an output that needs a gradient"
            raise UnfitCall(f"{self.name} returned {what}")

        def hook(grad: Tensor | None) -> None:
            if grad is not None:
                self._guarded(self._take_grad, form, inputs, self._in_order(grad))

        output.register_hook(hook)

    def _take_grad(self, form: _CallForm, inputs: SavedInputs | None, grad: Tensor) -> None:
        layout = _layout({"do": grad})
        if layout in form.layouts:
            return
        form.copies = 0  # so that the next call is copied
        if self._is_full:
            form.layouts.add(layout)
            raise UnfitCall(f"a set beyond the limit of --keep {self._how.keep}")
        if inputs is None:
            return
        values = _copies({**inputs.values, "do": grad})
        if not all(bool(values[name].isfinite().all()) for name in ("q", "k", "v", "do")):
            raise UnfitCall("a set with NaN or infinite numbers")
        placements = {**inputs.placements, **placements_of({"do": grad})}
        found = replace(inputs, values=values, placements=placements)
        digest = hashlib.sha256(repr((form.key, layout)).encode()).hexdigest()[:10]
        word = re.sub(r"\W", "", self.name.rpartition(":")[2])
        path = self._how.folder / f"{word}-{digest}{ENDING}"
        path.parent.mkdir(parents=True, exist_ok=True)
        save(path, found)
        form.layouts.add(layout)
        self.seen.kept[path.name] = _in_words(found)
        self.on_change()

    def _read(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """A call's tensors by their names here, in the program's own memory; and its options as plain data."""
        import torch

        given = self._by_canonical_name(args, kwargs)
        tensors = {name: given[name] for name in TENSORS if torch.is_tensor(given.get(name))}
        if missing := [name for name in ("q", "k", "v") if name not in tensors]:
            raise UnfitCall(f"{self.name} was called without a tensor for {', '.join(missing)}")
        for name, tensor in tensors.items():
            if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.is_meta:
                what = f"{name} of type {type(tensor).__name__}"
                raise UnfitCall(f"{self.name} was called with {what}, which is not kept")
        if tensors["q"].is_cuda and torch.cuda.is_current_stream_capturing():
            raise UnfitCall(f"a call of {self.name} inside a CUDA graph's capture was not kept")
        tensors |= {name: self._in_order(tensors[name]) for name in _ORDERED if name in tensors}
        plain = {name: _plain(name, given.get(name)) for name in OPTIONS}
        options = {name: value for name, value in plain.items() if value is not None}
        if options.get("causal") and tensors["q"].shape[-2] != tensors["k"].shape[-2]:
            options |= self._fixed
        if "keep" not in tensors and options.pop("dropout", None):
            why = "which entries it dropped cannot be known"
            self.seen.leave_out(f"dropout is left out of what is kept: {why}")
        return tensors, options

    def _in_order(self, tensor: Tensor) -> Tensor:
        is_other = self._how.order == "blhd" and tensor.dim() == 4
        return tensor.transpose(1, 2) if is_other else tensor

    def _by_canonical_name(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> dict[str, Any]:
        import torch

        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        arguments, given = {**bound.arguments}, dict[str, Any]()
        for parameter in self._signature.parameters.values():
            if parameter.kind is inspect.Parameter.VAR_KEYWORD:
                arguments |= arguments.pop(parameter.name)
        for own, value in arguments.items():
            name, is_tensor = canonical_name(own), torch.is_tensor(value)
            if name in ("bias", "mask") and is_tensor:
                name = "mask" if value.dtype == torch.bool else "bias"
            names = ("cu_seqlens_q", "cu_seqlens_k") if name == "cu_seqlens" else (name or "",)
            given |= dict.fromkeys(names, value)
            is_other = name in TENSORS and value is not None and not is_tensor
            if is_other or (name is None and is_tensor):
                why = "it is no tensor of a known name"
                self.seen.leave_out(f"the argument {own} of {self.name} is not kept: {why}")
        return given


def _plain(name: str, value: Any) -> Any:
    if value is None:
        return None
    if name in ("causal", "align", "family"):
        return bool(value) if name == "causal" else str(value)
    if name == "window":
        left, right = map(int, value)
        return (left, right) if (left, right) != (-1, -1) else None
    number = float(value)
    return number if name == "scale" or (number and math.isfinite(number)) else None


def _copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Contiguous copies of the values on the CPU, which later changes in place do not reach."""
    import torch

    found = {}
    for name, tensor in tensors.items():
        found[name] = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
        found[name].copy_(tensor.detach())
    return found


def _layout(tensors: Mapping[str, Tensor]) -> tuple[Any, ...]:
    """The shapes, dtypes, strides and alignments by which two sets of tensors count as the same.

    Strides of axes of size 1 address nothing, and PyTorch sets them as it likes.
    """
    found = list[Any]()
    for name, tensor in sorted(tensors.items()):
        shape = tuple(tensor.shape)
        steps = tuple(tensor.stride(axis) for axis, size in enumerate(shape) if size > 1)
        found.append((name, str(tensor.dtype), shape, steps, tensor.data_ptr() % 16 == 0))
    return tuple(found)


def _in_words(found: SavedInputs) -> str:
    """`B 2, H 3, L 20, D 8, float32, causal, q strided, do strided`."""
    q = found.values["q"]
    words = [f"{axis} {size}" for axis, size in zip("BHLD"[-q.dim() :], q.shape, strict=False)]
    words.append(str(q.dtype).removeprefix("torch."))
    words += [name for name in ("bias", "mask") if name in found.values]
    words += ["causal"] if found.options.get("causal") else []
    for name, at in found.placements.items():
        words += [f"{name} strided"] if at.strides != found.values[name].stride() else []
    return ", ".join(words)


def put_in_place(
    module: ModuleType, word: str, how: CapturePlan, seen: WatchedCalls
) -> WatchedFunction:
    """Watches a module's function in its place. Raises UsageFailure where the module has no such function."""
    name = word.rpartition(":")[2]
    function = getattr(module, name, None)
    if not callable(function) or isinstance(function, type):
        own = sorted(key for key, value in vars(module).items() if inspect.isfunction(value))
        words = f"{word}: {module.__file__} has no function {name}"
        raise UsageFailure(words, f"it has: {', '.join(own) or 'none'}")
    watch = WatchedFunction(function, word, how, seen)
    setattr(module, name, watch.wrapped)
    return watch
