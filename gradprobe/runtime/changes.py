"""The inputs that a run changed: which, where, and what changed them."""

from __future__ import annotations

import itertools
import linecache
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..frontends.triton.launches import storage_of
from ..inputs.guard_bands import mapped, same_bits
from ..inputs.tensor_layouts import Inputs, write
from ..model.assignment import OUTPUTS
from ..model.intermediates import title
from .allocations import asked_at, factory_mode

if TYPE_CHECKING:
    from torch import Tensor

# What a backward may write into: its results, and delta, which no other step of a program reads.
_ITS_OWN = (*OUTPUTS, "delta")


@dataclass(frozen=True)
class InputChange:
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


class InputsBefore:
    """The inputs of a run as they were when it began."""

    def __init__(self, inputs: Inputs, allowed: Collection[str]) -> None:
        """`allowed` names the inputs that the target may write over."""
        names = [name for name in inputs.tensors if name not in _ITS_OWN and name not in allowed]
        self._tensors = {name: inputs.tensors[name] for name in names}
        # The same memory, since a target may turn a tensor that it was given into another view, in place.
        self._memory = {name: tensor.detach() for name, tensor in self._tensors.items()}
        self._values = inputs.values

    def changes(self) -> tuple[InputChange, ...]:
        """The inputs that differ now, compared bit by bit, so that a NaN equals itself."""
        found = (look(name) for name in self._tensors for look in (self._bits, self._view))
        return tuple(change for change in found if change is not None)

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

    def _bits(self, name: str) -> InputChange | None:
        now, before = self._memory[name], self._values[name]
        differ = ~same_bits(now, before)
        if not bool(differ.any()):  # a sum would take eight bytes an element
            return None
        count, index = int(differ.sum()), tuple(differ.nonzero()[0].tolist())
        return InputChange(name, index, _number(before[index]), _number(now[index]), count, now.numel())

    def _view(self, name: str) -> InputChange | None:
        views = (self._tensors[name], self._memory[name])
        now, before = (f"shape {list(view.shape)} with strides {list(view.stride())}" for view in views)
        return None if now == before else InputChange(name, None, before, now, 0, self._memory[name].numel())


def _number(element: Tensor) -> str:
    return f"{element.item():.6g}" if element.is_floating_point() else str(element.item())


@dataclass
class Steps:
    """Compares the inputs after every launch and every operation that writes into one, and notes the writer."""

    given: InputsBefore
    writers: dict[str, Writer] = field(default_factory=dict)

    def launched(self, kernel: str) -> None:
        """Notes the inputs that a kernel has just changed."""
        for name in self.given.changed():
            self.writers.setdefault(name, Writer(kernel))

    def operations(self) -> Any:
        """While entered, notes the inputs that operations of torch change, with the line of Python that called them."""

        def wrote(tensor: Tensor) -> None:
            for name in self.given.changed(tensor.untyped_storage().data_ptr()):
                file, line = asked_at()
                self.writers.setdefault(name, Writer("", file, line or None, linecache.getline(file, line).strip()))

        return factory_mode(lambda tensor, has_values: tensor, wrote, copies=False)


@dataclass(frozen=True)
class Shared:
    """A gradient, some of whose elements lie in the memory of another tensor."""

    name: str
    other: str
    """An input or another gradient."""
    count: int
    """How many elements of the gradient."""


def shared(
    result: object, given: Mapping[str, Tensor], allowed: Collection[str], *, by_autograd: bool
) -> Iterator[Shared]:
    """What each gradient shares with the inputs and with later gradients. Disjoint parts of one buffer share nothing.

    Autograd may return one tensor as several gradients, or dO itself as the gradient of a summand. It clones them where
    they are kept. So its gradients are compared only with the inputs other than dO.

    Args:
        result: what a target returned.
        given: what it was given, including the tensors to write into.
        allowed: the inputs that it may write over.
    """
    held = {title(name): given[name] for name in OUTPUTS if name in given}
    returned = result.items() if isinstance(result, Mapping) else ()
    held |= {title(str(key)): tensor for key, tensor in returned if tensor is not None}
    gradients = {name: held[name] for name in map(title, OUTPUTS) if name in held}
    apart = {*OUTPUTS, *allowed, *(["do"] if by_autograd else [])}
    inputs = {name: tensor for name, tensor in given.items() if name not in apart}
    pairs = itertools.product(gradients, inputs)
    among = () if by_autograd else itertools.combinations(gradients, 2)
    every = {**inputs, **gradients}
    for name, other in itertools.chain(pairs, among):
        if count := _elements_of_both(every[name], every[other]):
            yield Shared(name, other, count)


def _elements_of_both(one: Tensor, other: Tensor) -> int:
    """How many elements of one tensor share a byte with the other."""
    import torch

    if one.device != other.device or storage_of(one) != storage_of(other) or not (one.numel() and other.numel()):
        return 0
    unit = math.gcd(one.element_size(), other.element_size())
    held = mapped(-(-one.untyped_storage().nbytes() // unit), torch.bool)
    _laid(other, held, unit).fill_(True)
    return int(_laid(one, held, unit).any(-1).sum())


def _laid(tensor: Tensor, held: Tensor, unit: int) -> Tensor:
    """[*shape, units of one element] the tensor's elements in `held`, an entry for each unit of its storage."""
    size = tensor.element_size() // unit
    strides = [step * size for step in tensor.stride()]
    return held.as_strided([*tensor.shape, size], [*strides, 1], tensor.storage_offset() * size)
