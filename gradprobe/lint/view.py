"""The tensors and strides of a kernel: which tensor each pointer is, whose stride each number may be."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Set
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from ..frontends.triton.launches import constants_of, storage_of
from ..model.intermediates import KINDS
from ..source.parameter_names import is_stride, stride_of, tensor_of, word_of
from ..source.pointers import Quantity, Record, pointer, read_kernel, stride
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
class HeldStride:
    """One stride of one tensor."""

    tensor: TensorViews
    axis: int

    def __str__(self) -> str:
        return f"{self.tensor.name}.stride({self.axis})"


@dataclass(frozen=True, eq=False)
class KernelView:
    """One kernel, as it is in one launch, or as the names of its parameters say."""

    function: Function
    tensors: Mapping[str, TensorViews]
    """By the parameters of pointers."""
    strides: Mapping[str, int]
    """The numbers of the parameters that may be strides."""
    memory: Collection[TensorViews]
    """All tensors that its strides may be of."""
    given: Set[int]
    """The strides that only one tensor can have."""
    record: Record
    """What its pointers do. What the constants of the launch rule out is not followed."""
    launch: HostLaunch | None
    """None where it was never launched."""

    @cached_property
    def names(self) -> dict[str, str]:
        """The tensors by what parameters call them."""
        found = {held.name: held.name for held in self.tensors.values()}
        return found | {word_of(name): held.name for name, held in self.tensors.items()}

    def meanings(self, parameter: str) -> list[HeldStride]:
        """The strides that a parameter is: those of which its name speaks, else those that alone have its number."""
        number, named, found = self.strides[parameter], self.named(parameter), list[HeldStride]()
        for held in self.memory:
            for axis, size in enumerate(held.shape):
                if size > 1 and held.strides[axis] == number > 0:
                    found.append(HeldStride(held, axis))
        return [each for each in found if each.tensor.name == named] or (found if number in self.given else [])

    def said(self, parameter: str) -> tuple[str, str]:
        """The word of a tensor, and the axis, of which a parameter's name speaks."""
        return stride_of(parameter, self.names)

    def named(self, parameter: str) -> str:
        """The tensor of whose stride a parameter's name speaks; "" where it does not tell."""
        return self.names.get(self.said(parameter)[0], "")

    def parameter_of(self, held: TensorViews, axis: int) -> str:
        """The parameter that is a tensor's own stride along an axis, rather one that is called so; "" where none is."""
        own = [name for name, number in self.strides.items() if number == held.strides[axis] and held.shape[axis] > 1]
        named = [name for name in own if self.named(name) == held.name]
        return next(iter(named + [name for name in own if not self.named(name)]), "")


def views_of(call: Caught | None) -> Iterator[KernelView]:
    """The Triton kernels that were launched in a call, as they are in each launch."""
    if call is None:
        return
    memory = {storage_of(tensor): _views_of(call, name, tensor, True) for name, tensor in call.inputs.items()}
    for launch in call.launches:
        for parameter, value in launch.arguments.items():
            if (tensor := tensor_in(value)) is not None:
                address = storage_of(tensor)
                if address not in memory:
                    name = (call.storages or {}).get(address, "").lower() or word_of(parameter)
                    memory[address] = _views_of(call, name, tensor, False)
                memory[address].own.update(tensor.stride())
    for launch in call.launches:
        if launch.function is not None:
            yield _launched(launch.function, launch, memory, call.given)


def _views_of(caught: Caught, name: str, tensor: Tensor, is_given: bool) -> TensorViews:
    case, shape, strides = caught.case, tuple(tensor.shape), tuple(tensor.stride())
    kinds = case.input_axes(name) or (case.axes(name) if case.exists(name) else "")
    # What a target allocates may have its axes in another order than its name says.
    is_certain = shape == tuple(map(case.size, kinds)) and (is_given or len(set(shape)) == len(shape))
    return TensorViews(name, shape, strides, kinds if is_certain else "", is_given, set(strides))


def _launched(function: Function, launch: HostLaunch, memory: Mapping[int, TensorViews], given: Set[int]) -> KernelView:
    tensors, strides, lost = dict[str, TensorViews](), dict[str, int](), set[str]()
    values, constants = dict[str, Quantity](), constants_of(function.plain)
    for name, value in launch.arguments.items():
        if (tensor := tensor_in(value)) is not None:
            tensors[name], values[name] = memory[storage_of(tensor)], pointer(name)
        elif type(value) is int and (value in given or (is_stride(name) and not name.isupper())):
            strides[name], values[name] = value, stride(name)
        elif name in constants or isinstance(value, (bool, str, type(None))):
            values[name] = Quantity(constant=value)
        elif isinstance(value, (tuple, list)) and not given.isdisjoint(value):
            lost.add(name)  # a tuple of strides is not followed into pointers
    record = read_kernel(function, values)
    record.lost |= lost
    return KernelView(function, tensors, strides, list(memory.values()), given, record, launch)


def view_by_name(function: Function) -> KernelView:
    """A kernel that was never launched: each stride is of the tensor that it is called after, and of no other."""
    # What is called a pointer is one, also where nobody knows of which tensor.
    pointers = {word_of(name): name for name in function.parameters if tensor_of(name) or "ptr" in name.lower()}
    values = {name: pointer(name) for name in pointers.values()}
    strides, axes = dict[str, int](), {word: dict[int, str]() for word in pointers}
    for number, name in enumerate(function.parameters):
        if is_stride(name):
            strides[name], values[name] = number, stride(name)
            word, axis = stride_of(name, pointers)
            axes.get(word, {})[number] = axis or "?"
    tensors = dict[str, TensorViews]()
    for word, name in pointers.items():
        own, kinds = tuple(axes[word]), "".join(axes[word].values())
        tensors[name] = TensorViews(tensor_of(name) or word, (2,) * len(own), own, kinds, True, set(own))
    return KernelView(
        function, tensors, strides, list(tensors.values()), frozenset(), read_kernel(function, values), None
    )
