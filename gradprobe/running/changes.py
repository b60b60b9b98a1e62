"""The inputs that a run changed: which, where, and what changed them."""

from __future__ import annotations

import linecache
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..cases.case import OUTPUTS
from ..cases.guards import same_bits
from ..cases.layouts import Inputs, write
from .allocations import asked_at, factory_mode

if TYPE_CHECKING:
    from torch import Tensor

# What a backward may write into: its results, and delta, which no other step of a program reads.
_ITS_OWN = (*OUTPUTS, "delta")


@dataclass(frozen=True)
class Change:
    """An input that does not hold the bits that it held before."""

    tensor: str
    index: tuple[int, ...] | None
    """The first element that differs; None where the tensor object was made another view."""
    before: str
    after: str
    """The value that stood there, and the value now; for a view, its shape and strides."""
    count: int
    """How many elements differ."""
    total: int


@dataclass(frozen=True)
class Writer:
    """The kernel or the line of Python that changed an input first."""

    kernel: str = ""
    """"" where it is a line of Python."""
    file: str = ""
    line: int | None = None
    """None where only the kernel is known."""
    code: str = ""


class Given:
    """The inputs of a run as they were when it began."""

    def __init__(self, inputs: Inputs, allowed: Collection[str]) -> None:
        """`allowed` names the inputs that the target may write over."""
        names = [name for name in inputs.tensors if name not in _ITS_OWN and name not in allowed]
        self._tensors = {name: inputs.tensors[name] for name in names}
        # The same memory, since a target may turn a tensor that it was given into another view, in place.
        self._memory = {name: tensor.detach() for name, tensor in self._tensors.items()}
        self._values = inputs.values

    def changes(self) -> tuple[Change, ...]:
        """The inputs that differ now, compared bit by bit, so that a NaN equals itself."""
        found = ((self._bits(name), self._view(name)) for name in self._tensors)
        return tuple(change for both in found for change in both if change is not None)

    def changed(self, storage: int | None = None) -> Iterator[str]:
        """The names of the inputs whose bits differ; only those in `storage` where it is given."""
        for name, tensor in self._memory.items():
            if storage in (None, tensor.untyped_storage().data_ptr()) and self._bits(name) is not None:
                yield name

    def restore(self) -> None:
        """Puts back every value, and every view."""
        for name, tensor in self._memory.items():
            write(tensor, self._values[name])
            self._tensors[name].data = tensor

    def _bits(self, name: str) -> Change | None:
        now, before = self._memory[name], self._values[name]
        differ = ~same_bits(now, before)
        count = int(differ.sum())
        if not count:
            return None
        index = tuple(differ.nonzero()[0].tolist())
        return Change(name, index, _number(before[index]), _number(now[index]), count, now.numel())

    def _view(self, name: str) -> Change | None:
        views = (self._tensors[name], self._memory[name])
        now, before = (f"shape {list(view.shape)} with strides {list(view.stride())}" for view in views)
        return None if now == before else Change(name, None, before, now, 0, self._memory[name].numel())


def _number(element: Tensor) -> str:
    return f"{element.item():.6g}" if element.is_floating_point() else str(element.item())


@dataclass
class Steps:
    """Compares the inputs after every launch and every operation that writes into one, and notes the writer."""

    given: Given
    writers: dict[str, Writer] = field(default_factory=dict)

    def launched(self, kernel: str) -> None:
        """Notes the inputs that a kernel has just changed."""
        for name in self.given.changed():
            self.writers.setdefault(name, Writer(kernel))

    def operations(self) -> AbstractContextManager[Any]:
        """While entered, notes the inputs that operations of torch change, with the line of Python that called them."""
        mode: AbstractContextManager[Any] = factory_mode(lambda tensor, has_values: tensor, self._wrote, copies=False)
        return mode

    def _wrote(self, tensor: Tensor) -> None:
        for name in self.given.changed(tensor.untyped_storage().data_ptr()):
            file, line = asked_at()
            self.writers.setdefault(name, Writer("", file, line or None, linecache.getline(file, line).strip()))
