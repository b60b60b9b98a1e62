"""Wraps a function and keeps its inputs and dO, once for each shape and layout. The program runs as before."""

from __future__ import annotations

import functools
import hashlib
import inspect
import math
import os
import re
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ...inputs.saved import OPTIONS, TENSORS, SavedInputs, layouts_in_words, save
from ...inputs.tensor_layouts import placements_of
from ...model.failures import UsageFailure
from ...targets.naming import canonical_name, conventions, readable
from .watched_calls import ENDING, CapturePlan, WatchedCalls

if TYPE_CHECKING:
    from torch import Tensor

_ORDERED = ("q", "k", "v", "do", "o")
# How many calls of one form are copied in the hope of a new layout of dO, which is known only after the copy.
PATIENCE = 8
# How many failures are counted apart: a message may hold a number that differs each time.
_MOST_FAILURES = 10


class UnfitCall(Exception):
    """Why a call cannot be kept."""


@dataclass
class _CallForm:
    """All calls with one shape and layout of the inputs."""

    waiting: weakref.WeakSet[_PendingCall] = field(default_factory=weakref.WeakSet)
    """Copies that wait for their dO. A copy disappears with the graph of its call."""
    idle: int = 0
    """Copies since the last new layout of dO that brought no new one."""
    layouts: set[Any] = field(default_factory=set)
    """The layouts of dO that were kept, or came beyond the limit."""


@dataclass(eq=False)
class _PendingCall:
    """A call whose dO has not come yet. It lives as long as the graph behind the call's output."""

    form: _CallForm
    key: tuple[Any, ...]
    inputs: SavedInputs | None
    """None where no more of its form are copied."""


class WatchedFunction:
    """Watches a function; the program calls `wrapped` in its place.

    Results, gradients and the program's random numbers are those of the function itself. No failure in here reaches
    the program; each is counted in `seen`.
    """

    def __init__(self, function: Callable[..., Any], name: str, how: CapturePlan) -> None:
        self.name, self._how = name, how
        self.on_change: Callable[[], None] = lambda: None
        """Called where a sentence about this process may have changed."""
        self._forms: dict[tuple[Any, ...], _CallForm] = {}
        self._signature = inspect.signature(readable(function))
        self._fixed = conventions(function)
        self.wrapped = self._wrap(function)
        self._begin_anew()
        os.register_at_fork(after_in_child=self._begin_anew)

    def _begin_anew(self) -> None:
        self.seen, self._lock = WatchedCalls(imported=True), threading.RLock()

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
                self._guarded(self._after, pending, output)
            return output

        return wrapped

    def _guarded(self, act: Callable[..., Any], *args: Any) -> Any:
        """Runs one step of the watching apart from the program: outside its graph and modes, and catching failures."""
        import torch
        from torch.utils._python_dispatch import _disable_current_modes

        with self._lock:
            try:
                with torch.no_grad(), _disable_current_modes():
                    return act(*args)
            except Exception as error:
                failures, words = self.seen.failures, str(error)
                if not isinstance(error, UnfitCall):
                    words = f"watching {self.name} failed: {type(error).__name__}: {error}"
                if words in failures or len(failures) < _MOST_FAILURES:
                    failures[words] = failures.get(words, 0) + 1
                if failures.get(words) == 1:
                    self.on_change()
                return None

    def _before(
        self, grad_enabled: bool, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> _PendingCall | None:
        self.seen.calls += 1
        if self.seen.calls == 1:
            self.on_change()
        tensors, options = self._read(args, kwargs)
        grad = tensors.pop("do", None)
        needs_grad = grad_enabled and any(tensor.requires_grad for tensor in tensors.values())
        if grad is None and not needs_grad:
            self.seen.without_grad += 1
            return None
        placements = placements_of(tensors)
        key = (_layout(tensors), tuple(sorted(options.items())))
        form = self._forms.setdefault(key, _CallForm())
        if grad is not None:  # the function is itself a backward, whose dO is an argument
            inputs = SavedInputs(tensors, placements, options)
            self._take_grad(_PendingCall(form, key, inputs), grad)
            return None
        if self._is_full or len(form.waiting) + form.idle >= PATIENCE:
            return _PendingCall(form, key, None)
        return _PendingCall(form, key, SavedInputs(_copies(tensors), placements, options))

    def _after(self, pending: _PendingCall, output: Any) -> None:
        import torch

        output = output[0] if isinstance(output, (tuple, list)) and output else output
        if not isinstance(output, torch.Tensor):
            kind = type(output).__name__
            raise UnfitCall(f"{self.name} returned {kind} and not its output tensor first")
        if not output.requires_grad:
            self.seen.without_grad += 1
            return
        if pending.inputs is not None:
            pending.form.waiting.add(pending)

        def hook(grad: Tensor | None) -> None:
            if grad is not None:
                self._guarded(self._take_grad, pending, self._in_order(grad))

        output.register_hook(hook)

    def _take_grad(self, pending: _PendingCall, grad: Tensor) -> None:
        form, inputs, pending.inputs = pending.form, pending.inputs, None
        placement = placements_of({"do": grad})
        layout = _layout({"do": grad})
        form.waiting.discard(pending)
        if layout in form.layouts:
            form.idle += inputs is not None
            return
        form.idle = 0  # so that the next call is copied
        if self._is_full:
            form.layouts.add(layout)
            self.seen.over += 1
        elif inputs is not None:
            values = _copies({**inputs.values, "do": grad})
            placements = {**inputs.placements, **placement}
            found = replace(inputs, values=values, placements=placements)
            if self._keep(found, (pending.key, layout)):
                form.layouts.add(layout)

    def _keep(self, found: SavedInputs, key: tuple[Any, Any]) -> bool:
        if not all(bool(found.values[name].isfinite().all()) for name in ("q", "k", "v", "do")):
            self.seen.not_finite += 1
            return False
        digest = hashlib.sha256(repr(key).encode()).hexdigest()[:10]
        self._how.folder.mkdir(parents=True, exist_ok=True)
        word = re.sub(r"\W", "", self.name.rpartition(":")[2])
        path = self._how.folder / f"{word}-{digest}{ENDING}"
        save(path, found)
        self.seen.kept[path.name] = _in_words(found)
        self.on_change()
        return True

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
            self.seen.note(f"dropout is left out of what is kept: {why}")
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
            if name == "cu_seqlens":
                given |= {"cu_seqlens_q": value, "cu_seqlens_k": value}
            elif name is not None:
                given[name] = value
            is_other = name in TENSORS and value is not None and not is_tensor
            if is_other or (name is None and is_tensor):
                why = "it is no tensor of a known name"
                self.seen.note(f"the argument {own} of {self.name} is not kept: {why}")
        return given


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


def _copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Contiguous copies of the values on the CPU, which later changes in place do not reach."""
    import torch

    found = {}
    for name, tensor in tensors.items():
        copy = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
        found[name] = copy.copy_(tensor.detach())
    return found


def _layout(tensors: Mapping[str, Tensor]) -> tuple[Any, ...]:
    """The shapes, dtypes, strides and alignments by which two sets of tensors count as the same.

    Strides of axes of size 1 address nothing, and PyTorch sets them as it likes.
    """
    found = list[Any]()
    for name, tensor in sorted(tensors.items()):
        axes = [axis for axis, size in enumerate(tensor.shape) if size > 1]
        steps = tuple(tensor.stride(axis) for axis in axes)
        memory = (steps, tensor.data_ptr() % 16 == 0)
        found.append((name, str(tensor.dtype), tuple(tensor.shape), *memory))
    return tuple(found)


def _in_words(found: SavedInputs) -> str:
    """`B 2, H 3, L 20, D 8, causal; q k v strided, do blhd`."""
    q, k = found.values["q"], found.values["k"]
    sizes = [("B", q.shape[0], q.shape[0])] if q.dim() == 4 else []
    sizes += [("H", q.shape[-3], k.shape[-3]), ("L", q.shape[-2], k.shape[-2])]
    words = [f"{name} {own}" + (f"/{other}" * (own != other)) for name, own, other in sizes]
    words += [f"D {q.shape[-1]}", str(q.dtype).removeprefix("torch.")]
    words += [name for name in ("bias", "mask") if name in found.values]
    words += ["causal"] if found.options.get("causal") else []
    return f"{', '.join(words)}; {layouts_in_words(found)}"


def put_in_place(module: ModuleType, word: str, how: CapturePlan) -> WatchedFunction:
    """Watches a module's function in its place. Raises UsageFailure where the module has no such function."""
    name = word.rpartition(":")[2]
    function = getattr(module, name, None)
    if function is None:
        own = sorted(key for key, value in vars(module).items() if inspect.isfunction(value))
        words = f"{word}: {module.__file__} has no function {name}"
        raise UsageFailure(words, f"it has: {', '.join(own) or 'none'}")
    if not callable(function) or isinstance(function, type):
        raise UsageFailure(f"{word}: {name} is not a function but {type(function).__name__}")
    watch = WatchedFunction(function, word, how)
    setattr(module, name, watch.wrapped)
    return watch
