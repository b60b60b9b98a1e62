"""Memory: what the tensors of a call are named, and whose stride a number is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..cases.case import Case
from ..cases.placement import spanned
from ..intermediates import lookup
from ..running.launches import storage_of
from .catching import Caught
from .launch import Launch
from .names import word_of

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Stride:
    """One stride of one tensor."""

    tensor: str
    axis: int
    kind: str
    """What the axis is, one letter of the table of intermediates; "" where that is not known."""

    def __str__(self) -> str:
        return f"{self.tensor}.stride({self.axis})"


@dataclass(frozen=True)
class Held:
    """One tensor, whatever views of it there are."""

    name: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    kinds: str
    """What its axes are; "" where that is not known."""
    is_given: bool
    """Whether the target was given it, and did not allocate it."""

    def stride(self, axis: int) -> Stride:
        return Stride(self.name, axis, self.kinds[axis] if self.kinds else "")


@dataclass(frozen=True)
class Memory:
    """The tensors of one call."""

    case: Case
    held: Mapping[int, Held]
    """By the address of the storage."""
    meanings: Mapping[int, tuple[Stride, ...]]
    """The strides that are a number, those of axes longer than 1."""
    given: frozenset[int]
    """The numbers that are a stride and nothing else."""
    own: Mapping[int, frozenset[int]] = field(default_factory=dict)
    """By the address of the storage: every stride of its tensor and of any view of it."""

    def tensor(self, value: Any) -> Held | None:
        """The tensor that an argument points into."""
        tensor = _plain(value)
        return None if tensor is None else self.held.get(storage_of(tensor))

    def is_as_long_as(self, flat: Held, name: str) -> bool:
        """Whether a row of elements that the target allocated has room for a tensor as that lies: it lies so too."""
        others = [spanned(each.shape, each.strides) for each in self.held.values() if each.name == name]
        return not flat.is_given and len(flat.shape) == 1 and any(span <= flat.shape[0] for span in others)

    def owns(self, value: Any, number: int) -> bool:
        """Whether a number is a stride of the tensor that an argument points into."""
        tensor = _plain(value)
        return tensor is not None and number in self.own.get(storage_of(tensor), frozenset())


def memory_of(caught: Caught) -> Memory:
    """The tensors of a call and their strides."""
    held = {storage_of(tensor): _held(caught, name, tensor, True) for name, tensor in caught.inputs.items()}
    own: dict[int, set[int]] = {address: set(each.strides) for address, each in held.items()}
    for parameter, tensor in _pointers(caught.launches):
        address = storage_of(tensor)
        if address not in held:
            name = caught.storages.get(address, "").lower() or word_of(parameter)
            held[address] = _held(caught, name, tensor, False)
        own.setdefault(address, set()).update(tensor.stride(), held[address].strides)
    frozen = {address: frozenset(strides) for address, strides in own.items()}
    return Memory(caught.case, held, _meanings(held), caught.given, frozen)


def _meanings(held: Mapping[int, Held]) -> dict[int, tuple[Stride, ...]]:
    found: dict[int, tuple[Stride, ...]] = {}
    for each in held.values():
        for axis, (size, step) in enumerate(zip(each.shape, each.strides, strict=True)):
            if size > 1 and step > 0:
                found[step] = (*found.get(step, ()), each.stride(axis))
    return found


def _held(caught: Caught, name: str, tensor: Tensor, is_given: bool) -> Held:
    kinds = _kinds(caught.case, name)
    shape = [caught.case.size(axis) for axis in kinds]
    # What a target allocates may have its axes in another order than its name says.
    is_so = shape == list(tensor.shape) and (is_given or len(set(shape)) == len(shape))
    kinds = kinds if is_so else ""
    return Held(name, tuple(tensor.shape), tuple(tensor.stride()), kinds, is_given)


def _kinds(case: Case, name: str) -> str:
    if axes := case.input_axes(name):
        return axes
    row = lookup(name)
    return case.axes(name) if row is not None and row.step(case.family) is not None and case.has(row.needs) else ""


def _pointers(launches: tuple[Launch, ...]) -> Iterator[tuple[str, Tensor]]:
    for launch in launches:
        for name, value in launch.arguments.items():
            tensor = _plain(value)
            if tensor is not None:
                yield name, tensor


def _plain(value: Any) -> Tensor | None:
    """The tensor that an argument is, or that a descriptor describes."""
    import torch

    value = getattr(value, "base", value)
    return value if isinstance(value, torch.Tensor) else None
