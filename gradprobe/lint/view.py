"""The tensors and strides of a launched kernel: which tensor each pointer is, whose stride each number may be."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..frontends.triton.launches import storage_of
from ..model.intermediates import KINDS
from ..source.parameter_names import is_stride, stride_of, word_of
from ..source.pointers import Quantity, Record, pointer, read_kernel, stride, variable
from ..source.triton_source import Function
from .catching import Caught, HostLaunch, tensor_in

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, eq=False)
class TensorViews:
    """One tensor, whatever views of it there are."""

    name: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    kinds: str
    """What its axes are, each one letter of the table of intermediates; "" where that is not known."""
    is_given: bool
    """Whether the target was given it, and did not allocate it."""
    own: set[int] = field(default_factory=set)
    """Every stride of it and of any view of it."""

    def kind(self, axis: int | None) -> str:
        return self.kinds[axis] if self.kinds and axis is not None else ""

    def axis_like(self, kind: str, number: int) -> int | None:
        """The axis of a kind, or of its family; where kinds are not known that of the same number."""
        if not self.kinds or not kind:
            return number if number < len(self.shape) else None
        alike = [axis for axis, own in enumerate(self.kinds) if KINDS.get(own, own) == KINDS.get(kind, kind)]
        return self.kinds.find(kind) if kind in self.kinds else next(iter(alike), None)


@dataclass(frozen=True)
class Stride:
    """One stride of one tensor."""

    tensor: TensorViews
    axis: int

    def __str__(self) -> str:
        return f"{self.tensor.name}.stride({self.axis})"


class KernelView:
    """One kernel in one launch."""

    def __init__(self, function: Function, launch: HostLaunch, memory: dict[int, TensorViews], given: frozenset[int]):
        self.function, self.launch, self.name = function, launch, launch.name
        self._memory, self._given = memory, given
        self.tensors: dict[str, TensorViews] = {}
        """By the parameters of pointers."""
        self.strides: dict[str, int] = {}
        """The numbers of the parameters that may be strides."""
        for name, value in launch.arguments.items():
            if (tensor := tensor_in(value)) is not None:
                self.tensors[name] = memory[storage_of(tensor)]
            elif type(value) is int and (value in given or (is_stride(name) and not name.isupper())):
                self.strides[name] = value
        self._words = {held.name: held.name for held in self.tensors.values()}
        self._words |= {word_of(name): held.name for name, held in self.tensors.items()}
        values = {name: self._value(name, value) for name, value in launch.arguments.items()}
        self.record: Record = read_kernel(function, values)
        """What its pointers do. What the constants of the launch rule out is not followed."""
        self.record.lost |= {name for name, value in launch.arguments.items() if self._holds_strides(value)}

    def _holds_strides(self, value: Any) -> bool:
        """Whether it is a tuple of strides, which are not followed into pointers."""
        return isinstance(value, (tuple, list)) and any(type(each) is int and each in self._given for each in value)

    def _value(self, name: str, value: Any) -> Quantity:
        if name in self.tensors:
            return pointer(name)
        if name in self.strides:
            return stride(name)
        is_constant = name in self.launch.constants or isinstance(value, (bool, str, type(None)))
        return variable(name, value) if is_constant else variable(name)

    def meanings(self, parameter: str) -> list[Stride]:
        """The strides that a parameter is: those of which its name speaks, else those that alone have its number."""
        number, named, found = self.strides[parameter], self.named(parameter), list[Stride]()
        for held in self._memory.values():
            long = [axis for axis, size in enumerate(held.shape) if size > 1]
            found += [Stride(held, axis) for axis in long if held.strides[axis] == number > 0]
        return [each for each in found if each.tensor.name == named] or (found if number in self._given else [])

    def said(self, parameter: str) -> tuple[str, str]:
        """The word of a tensor, and the axis, of which a parameter's name speaks."""
        return stride_of(parameter, self._words)

    def named(self, parameter: str) -> str:
        """The tensor of whose stride a parameter's name speaks; "" where it does not tell."""
        return self._words.get(self.said(parameter)[0], "")

    def parameters_of(self, held: TensorViews, axis: int) -> list[str]:
        """The parameters that are a tensor's own stride along an axis, first those that are called so."""
        own = [name for name, number in self.strides.items() if number == held.strides[axis] and held.shape[axis] > 1]
        named = [name for name in own if self.named(name) in ("", held.name)]
        return sorted(named, key=lambda name: self.named(name) == "")


def views_of(call: Caught | None) -> Iterator[KernelView]:
    """The Triton kernels that were launched in a call, as they are in each launch."""
    if call is None:
        return
    memory = {storage_of(tensor): _views_of(call, name, tensor, True) for name, tensor in call.inputs.items()}
    for parameter, value in (pair for launch in call.launches for pair in launch.arguments.items()):
        if (tensor := tensor_in(value)) is not None:
            address = storage_of(tensor)
            if address not in memory:
                name = (call.storages or {}).get(address, "").lower() or word_of(parameter)
                memory[address] = _views_of(call, name, tensor, False)
            memory[address].own.update(tensor.stride())
    for launch in call.launches:
        if launch.function is not None:
            yield KernelView(launch.function, launch, memory, call.given)


def _views_of(caught: Caught, name: str, tensor: Tensor, is_given: bool) -> TensorViews:
    case, shape, strides = caught.case, tuple(tensor.shape), tuple(tensor.stride())
    kinds = case.input_axes(name) or (case.axes(name) if case.exists(name) else "")
    # What a target allocates may have its axes in another order than its name says.
    is_certain = shape == tuple(map(case.size, kinds)) and (is_given or len(set(shape)) == len(shape))
    return TensorViews(name, shape, strides, kinds if is_certain else "", is_given, set(strides))
