"""WatchedCalls: counts what a watched function did, and says in a sentence why nothing was kept."""

from __future__ import annotations

import inspect
import json
import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...inputs.contents import OPTIONS, TENSORS
from ...model.number import plural
from ...targets.naming import canonical_name, conventions, readable

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class WatchedCalls:
    """What one process saw of a watched function, or several together."""

    imported: bool = False
    """Whether the function's module was imported and holds the function."""
    trouble: str = ""
    """Why the function could not be wrapped."""
    calls: int = 0
    without_grad: int = 0
    """Calls under no_grad, or in which no input needs a gradient."""
    arrived: int = 0
    """Gradients that came back to an output."""
    not_finite: int = 0
    """Sets that were not kept because they hold NaN or infinity."""
    over: int = 0
    """Sets that were not kept because the limit was reached."""
    kept: int = 0
    layouts_missed: int = 0
    """Layouts of dO that came only with calls whose inputs had not been copied."""
    failures: dict[str, int] = field(default_factory=dict)
    """What went wrong in watching, and how often."""
    notes: list[str] = field(default_factory=list)
    """What a kept set leaves out."""
    main: str = ""
    """The file that the process ran."""
    path: list[str] = field(default_factory=list)
    """Where it looked for modules."""
    python: str = ""
    """The Python that ran it, where the function was not wrapped."""
    torch: bool = False
    """Whether that Python has torch."""

    def write(self, folder: Path) -> None:
        """Writes the file of this process, which replaces an older one at once."""
        partial = folder / f".seen-{os.getpid()}"
        partial.write_text(json.dumps(asdict(self)))
        partial.replace(folder / f"seen-{os.getpid()}.json")

    def why_nothing(self, function: str) -> str:
        """Why no set was kept."""
        if self.trouble:
            return self.trouble
        if not self.imported:
            module = function.rpartition(":")[0]
            as_main = (
                f": {Path(self.main).name} ran as the program itself, which Python calls __main__ and not {module}; "
                "move the function into a module that it imports"
            )
            stem = Path(self.main).stem
            is_main = bool(stem) and stem == module.rpartition(".")[2]
            if not self.torch:
                return f"the program ran in {self.python}, which has no torch: name the Python that the program needs"
            return f"the module {module} was never imported" + (
                as_main if is_main else f" in {self.python}"
            )
        if not self.calls:
            return f"{function} was never called (calls inside torch.compile are not seen)"
        called = f"{function} was called {_times(self.calls)}"
        if self.failures:
            return f"{called}; {self.troubles()[0]}"
        if self.not_finite:
            return f"{called}; {plural(self.not_finite, 'set')} held NaN or infinite numbers, and no other came"
        if self.without_grad == self.calls:
            return f"{called}, each time without gradients (no_grad, or no input needs one)"
        return f"{called}, and no gradient came back to its output"

    def troubles(self) -> list[str]:
        """One sentence for everything that went wrong or was left out."""
        words = [f"{what} ({_times(times)})" for what, times in self.failures.items()]
        if self.over:
            words.append(f"{plural(self.over, 'set')} more not kept: the limit is {self.kept}")
        if self.kept and self.not_finite:
            words.append(
                f"{plural(self.not_finite, 'set')} not kept for holding NaN or infinite numbers"
            )
        if self.layouts_missed:
            words.append(
                f"{plural(self.layouts_missed, 'layout')} of dO came too late to be kept with their inputs"
            )
        return [*words, *self.notes]


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"


def together(watches: Iterable[WatchedCalls]) -> WatchedCalls:
    """What several processes saw, as one."""
    whole = WatchedCalls()
    for seen in watches:
        whole.imported |= seen.imported
        whole.trouble = whole.trouble or seen.trouble
        for name in (
            "calls",
            "without_grad",
            "arrived",
            "not_finite",
            "over",
            "kept",
            "layouts_missed",
        ):
            setattr(whole, name, getattr(whole, name) + getattr(seen, name))
        for what, times in seen.failures.items():
            whole.failures[what] = whole.failures.get(what, 0) + times
        whole.notes += [note for note in seen.notes if note not in whole.notes]
        whole.main = whole.main or seen.main
        whole.python = whole.python or seen.python
        whole.torch |= seen.torch
        whole.path += [entry for entry in seen.path if entry not in whole.path]
    return whole


def read(folder: Path) -> list[WatchedCalls]:
    """What each process wrote."""
    return [
        WatchedCalls(**json.loads(file.read_text()))
        for file in sorted(folder.glob("seen-*.json"))
    ]


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
            Unfit: q, k or v is missing, or the values of a tensor cannot be read.
            TypeError: the function does not take these arguments.
        """
        import torch

        given, notes = self._by_canonical_name(args, kwargs)
        tensors = {
            name: given[name] for name in TENSORS if isinstance(given.get(name), torch.Tensor)
        }
        missing = [name for name in ("q", "k", "v") if name not in tensors]
        if missing:
            raise UnfitCall(f"{self.name} was called without a tensor for {', '.join(missing)}")
        for name, tensor in tensors.items():
            if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.is_meta:
                raise UnfitCall(
                    f"{self.name} was called with {name} of type {type(tensor).__name__}, which is not kept"
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
            if (
                is_tensor
                if name is None
                else name in TENSORS and value is not None and not is_tensor
            ):
                notes.append(
                    f"the argument {own} of {self.name} is not kept: it is no tensor of a known name"
                )
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
        options = {
            name: _plain(name, given[name]) for name in OPTIONS if given.get(name) is not None
        }
        options = {name: value for name, value in options.items() if value is not None}
        if options.get("causal") and tensors["q"].shape[-2] != tensors["k"].shape[-2]:
            options |= self._fixed
        if "dropout" in options and "keep" not in tensors:
            del options["dropout"]
            return options, (
                "dropout is left out of what is kept: which entries it dropped cannot be known",
            )
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
