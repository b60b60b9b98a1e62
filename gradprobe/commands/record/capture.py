"""Wraps a function and keeps its inputs and dO, once for each shape and layout. The program runs as before."""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import importlib
import inspect
import os
import re
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ...inputs import history
from ...inputs.placement import Placement, placements_of
from ...inputs.saved import SavedInputs, save
from ...model.failures import UsageFailure
from ...model.number import plural
from ...model.writing import safe
from .call import ORDERS, Reader, UnfitCall
from .watched_calls import WatchedCalls

if TYPE_CHECKING:
    from torch import Tensor

FOLDER = history.FOLDER / "captures"
ENDING = ".inputs.pt"
# How many calls of one form are copied in the hope of a new layout of dO, which is known only after the copy.
PATIENCE = 8
# How many failures are counted apart: a message may hold a number that differs each time.
_MOST_FAILURES = 10


@dataclass(frozen=True)
class CapturePlan:
    """Where and how many sets of inputs are kept."""

    folder: Path
    """It holds one file for each set, and is made with the first."""
    keep: int
    """How many sets are kept at most."""
    order: str
    """The function's order of axes, bhld or blhd. Sets are kept as [B, H, L, D]."""

    def __post_init__(self) -> None:
        if self.keep < 1:
            raise UsageFailure(f"keep must be at least 1, got {self.keep}")
        if self.order not in ORDERS:
            raise UsageFailure(f"order must be one of {', '.join(ORDERS)}, got {self.order!r}")


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
        """`name` is what sentences call the function."""
        self.name, self.folder, self.keep = name, how.folder, how.keep
        self.files: list[Path] = []
        self.on_change: Callable[[], None] = lambda: None
        """Called where a sentence about this process may have changed."""
        self._forms: dict[tuple[Any, ...], _CallForm] = {}
        self._reader = Reader(function, name, how.order)
        self.wrapped = self._wrap(function)

        def begin_anew() -> None:
            self.seen, self._lock = WatchedCalls(imported=True), threading.RLock()

        begin_anew()
        os.register_at_fork(after_in_child=begin_anew)

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

        vars(wrapped)["watch"] = self
        return wrapped

    def _guarded(self, act: Callable[..., Any], *args: Any) -> Any:
        """Runs one step of the watching apart from the program: outside its graph and modes, and catching failures."""
        import torch
        from torch.utils._python_dispatch import _disable_current_modes

        with self._lock:
            before = self._kinds()
            try:
                with torch.no_grad(), _disable_current_modes():
                    return act(*args)
            except Exception as error:
                failures, words = self.seen.failures, str(error)
                if not isinstance(error, UnfitCall):
                    words = f"watching {self.name} failed: {type(error).__name__}: {error}"
                if words in failures or len(failures) < _MOST_FAILURES:
                    failures[words] = failures.get(words, 0) + 1
                return None
            finally:
                if self._kinds() != before:
                    self.on_change()

    def _kinds(self) -> list[int]:
        counts = vars(self.seen).values()
        return [
            self.seen.kept,
            *(bool(one) if isinstance(one, int) else len(one) for one in counts),
        ]

    def _before(
        self, grad_enabled: bool, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> _PendingCall | None:
        self.seen.calls += 1
        call = self._reader.read(args, kwargs)
        self.seen.notes += [note for note in call.notes if note not in self.seen.notes]
        tensors = {**call.tensors}
        grad = tensors.pop("do", None)
        needs_grad = grad_enabled and any(tensor.requires_grad for tensor in tensors.values())
        if grad is None and not needs_grad:
            self.seen.without_grad += 1
            return None
        placements = placements_of(tensors)
        key = (_layout(tensors, placements), tuple(sorted(call.options.items())))
        form = self._forms.setdefault(key, _CallForm())
        if grad is not None:  # the function is itself a backward, whose dO is an argument
            inputs = SavedInputs(tensors, placements, call.options)
            self._arrived(_PendingCall(form, key, inputs), grad)
            return None
        if len(self.files) >= self.keep or len(form.waiting) + form.idle >= PATIENCE:
            return _PendingCall(form, key, None)
        return _PendingCall(form, key, SavedInputs(_copies(tensors), placements, call.options))

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
                self._guarded(self._arrived, pending, self._reader.in_order(grad))

        output.register_hook(hook)

    def _arrived(self, pending: _PendingCall, grad: Tensor) -> None:
        self.seen.arrived += 1
        form, inputs, pending.inputs = pending.form, pending.inputs, None
        form.waiting.discard(pending)
        placement = placements_of({"do": grad})
        layout = _layout({"do": grad}, placement)
        if layout in form.layouts:
            form.idle += inputs is not None
        elif len(self.files) >= self.keep:
            form.layouts.add(layout)
            self.seen.over += 1
        elif inputs is None:
            form.idle = 0  # so that the next call is copied
        else:
            values = _copies({**inputs.values, "do": grad})
            placements = {**inputs.placements, **placement}
            found = replace(inputs, values=values, placements=placements)
            self._keep(form, found, (pending.key, layout))

    def _keep(self, form: _CallForm, found: SavedInputs, key: tuple[Any, Any]) -> None:
        if not all(bool(found.values[name].isfinite().all()) for name in ("q", "k", "v", "do")):
            self.seen.not_finite += 1
            return
        form.layouts.add(key[1])
        form.idle = 0
        digest = hashlib.sha256(repr(key).encode()).hexdigest()[:10]
        self.folder.mkdir(parents=True, exist_ok=True)
        word = re.sub(r"\W", "", self.name.rpartition(":")[2])
        path = self.folder / f"{word}-{digest}{ENDING}"
        save(path, found)
        self.files.append(path)
        self.seen.kept += 1


def _copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Contiguous copies of the values on the CPU, which later changes in place do not reach."""
    import torch

    return {
        name: torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu").copy_(tensor.detach())
        for name, tensor in tensors.items()
    }


def _layout(
    tensors: Mapping[str, Tensor], placements: Mapping[str, Placement]
) -> tuple[Any, ...]:
    """The shapes, dtypes, strides, alignments and sharing by which two sets of tensors count as the same.

    Strides of axes of size 1 address nothing, and PyTorch sets them as it likes.
    """
    found = list[Any]()
    for name, tensor in sorted(tensors.items()):
        axes = [axis for axis, size in enumerate(tensor.shape) if size > 1]
        steps = tuple(tensor.stride(axis) for axis in axes)
        buffer = placements[name].buffer if name in placements else None
        memory = (steps, tensor.data_ptr() % 16 == 0, buffer)
        found.append((name, str(tensor.dtype), tuple(tensor.shape), *memory))
    return tuple(found)


def capture(function: Any, how: CapturePlan) -> Any:
    """See `gradprobe.capture`. Raises UsageFailure where it is neither a function nor the name of one."""
    if function is None:
        return functools.partial(capture, how=how)
    if isinstance(function, str):
        return _replaced(function, how)
    name = getattr(function, "__name__", type(function).__name__)
    watch = _watched(
        function, name, how, f"capture takes a function, got {type(function).__name__}"
    )
    atexit.register(_tell, watch)
    return watch.wrapped


@contextlib.contextmanager
def _replaced(word: str, how: CapturePlan) -> Iterator[WatchedFunction]:
    """While open, a module holds the wrapped function in place of its own."""
    place, name = parted(word)
    module = importlib.import_module(place)
    original = getattr(module, name, None)
    watch = put_in_place(module, word, how)
    atexit.register(_tell, watch)
    try:
        yield watch
    finally:
        setattr(module, name, original)


def parted(word: str) -> tuple[str, str]:
    """The module and the function of "package.module:function". Raises UsageFailure where the word has another form."""
    place, colon, name = word.partition(":")
    if not colon or not all(part.isidentifier() for part in (name, *place.split("."))):
        way_out = "for example --watch model.attention:attention; a method or a nested function cannot be watched"
        raise UsageFailure(f"--watch takes MODULE:FUNCTION, got {word!r}", way_out)
    return place, name


def put_in_place(module: ModuleType, word: str, how: CapturePlan) -> WatchedFunction:
    """Watches a module's function in its place. Raises UsageFailure where the module has no such function."""
    name = word.rpartition(":")[2]
    function = getattr(module, name, None)
    if function is None:
        own = sorted(key for key, value in vars(module).items() if inspect.isfunction(value))
        words = f"{word}: {module.__file__} has no function {name}"
        raise UsageFailure(words, f"it has: {', '.join(own) or 'none'}")
    words = f"{word}: {name} is not a function but {type(function).__name__}"
    watch = _watched(function, word, how, words)
    setattr(module, name, watch.wrapped)
    return watch


def _watched(function: Any, name: str, how: CapturePlan, refusal: str) -> WatchedFunction:
    if not callable(function) or isinstance(function, type):
        raise UsageFailure(refusal)
    return WatchedFunction(function, name, how)


def _tell(watch: WatchedFunction) -> None:
    if watch.files:
        sets = plural(len(watch.files), "set")
        lines = [f"kept {sets} of inputs of {watch.name} in {watch.folder}"]
        lines.append(f"check with: gradprobe check TARGET --inputs {watch.files[0]}")
    else:
        lines = [f"no inputs were kept: {watch.seen.why_nothing(watch.name)}"]
    for line in [*lines, *watch.seen.troubles()]:
        print(safe(f"gradprobe: {line}"), file=sys.stderr)
