"""What names of kernels' parameters say by the field's custom: which tensor a pointer is, whose stride a number is."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ..inputs.placement import spanned
from ..runtime.launches import storage_of
from ..source.parameter_names import is_stride, stride_of, word_of
from ..source.triton_source import Function
from .catching import Caught
from .cuda import CudaKernel, read_cuda
from .launch import HostLaunch, tensor_in
from .pointers import read_kernel
from .values import AddressValue, Amount, LaunchConstant, Parts, Record, StrideFactor, Term, Value, opaque

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
class TensorViews:
    """One tensor, whatever views of it there are."""

    name: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    kinds: str
    """What its axes are; "" where that is not known."""
    is_given: bool
    """Whether the target was given it, and did not allocate it."""
    own: set[int]
    """Every stride of it and of any view of it."""

    def stride(self, axis: int) -> Stride:
        return Stride(self.name, axis, self.kinds[axis] if self.kinds else "")


@dataclass(frozen=True)
class CallTensors:
    """The tensors of one call."""

    held: Mapping[int, TensorViews]
    """By the address of the storage."""
    meanings: Mapping[int, tuple[Stride, ...]]
    """The strides that are a number, those of axes longer than 1."""
    given: frozenset[int]
    """The numbers that are a stride and nothing else."""

    def tensor(self, value: Any) -> TensorViews | None:
        """The tensor that an argument points into."""
        tensor = tensor_in(value)
        return None if tensor is None else self.held.get(storage_of(tensor))

    def is_as_long_as(self, flat: TensorViews, name: str) -> bool:
        """Whether a row of elements that the target allocated has room for a tensor as that lies: it lies so too."""
        others = [spanned(each.shape, each.strides) for each in self.held.values() if each.name == name]
        return not flat.is_given and len(flat.shape) == 1 and any(span <= flat.shape[0] for span in others)


def memory_of(caught: Caught) -> CallTensors:
    """The tensors of a call and their strides."""
    held = {storage_of(tensor): _views_of(caught, name, tensor, True) for name, tensor in caught.inputs.items()}
    for parameter, value in (pair for launch in caught.launches for pair in launch.arguments.items()):
        if (tensor := tensor_in(value)) is not None:
            address = storage_of(tensor)
            if address not in held:
                name = caught.storages.get(address, "").lower() or word_of(parameter)
                held[address] = _views_of(caught, name, tensor, False)
            held[address].own.update(tensor.stride())
    meanings: dict[int, tuple[Stride, ...]] = {}
    for each in held.values():
        for axis, (size, step) in enumerate(zip(each.shape, each.strides, strict=True)):
            if size > 1 and step > 0:
                meanings[step] = (*meanings.get(step, ()), each.stride(axis))
    return CallTensors(held, meanings, caught.given)


def _views_of(caught: Caught, name: str, tensor: Tensor, is_given: bool) -> TensorViews:
    case, shape = caught.case, tuple(tensor.shape)
    kinds = case.input_axes(name) or (case.axes(name) if case.exists(name) else "")
    expected = tuple(case.size(axis) for axis in kinds)
    # What a target allocates may have its axes in another order than its name says.
    is_certain = expected == shape and (is_given or len(set(shape)) == len(shape))
    strides = tuple(tensor.stride())
    return TensorViews(name, shape, strides, kinds if is_certain else "", is_given, set(strides))


@dataclass(frozen=True)
class KernelView:
    """One kernel in one launch."""

    launch: HostLaunch
    memory: CallTensors
    ordinary: tuple[HostLaunch, CallTensors] | None = None
    """The same launch where what the target allocates lies as it asked for."""

    @cached_property
    def record(self) -> Record:
        """What its pointers do. What the constants of the launch rule out is not followed."""
        function, launch = self.function, self.launch
        if isinstance(function, CudaKernel):
            return read_cuda(function, frozenset(self.strides), frozenset(self.plain_names))
        values = {name: self._value(name, value, name in launch.constants) for name, value in launch.arguments.items()}
        return read_kernel(function, values)

    def _value(self, name: str, value: Any, is_constant: bool) -> Value:
        if self.memory.tensor(value) is not None:
            return AddressValue(frozenset({name}))
        if isinstance(value, (tuple, list)):
            return Parts(tuple(self._value(f"{name}[{at}]", each, is_constant) for at, each in enumerate(value)))
        if self._may_be_stride(name, value):
            return stride_value(name)
        if value is None or is_constant or isinstance(value, (bool, str)):
            return LaunchConstant(value)
        return opaque(name=name)

    def _may_be_stride(self, name: str, value: Any) -> bool:
        is_number = isinstance(value, int) and not isinstance(value, bool)
        return is_number and (value in self.memory.given or (is_stride(name) and not name.isupper()))

    @property
    def function(self) -> Function | CudaKernel:
        return self.launch.function

    @property
    def name(self) -> str:
        return self.launch.name

    @cached_property
    def plain_names(self) -> dict[str, str]:
        """What the parameters of pointers are called without what says that they are pointers."""
        return {name: word_of(name) for name, value in self.launch.arguments.items() if self.memory.tensor(value)}

    def number(self, parameter: str) -> int:
        """The number that a parameter is, also one of a tuple: "strides[1]"."""
        return _number(self.launch, parameter)

    def tensor_of(self, base: str) -> TensorViews | None:
        """The tensor of a pointer's parameter."""
        return self.memory.tensor(self.launch.arguments.get(base))

    def owns(self, base: str, parameter: str) -> bool:
        """Whether a parameter is a stride of the tensor that a pointer points into, here or where nobody interferes."""
        for launch, memory in ((self.launch, self.memory), *([self.ordinary] if self.ordinary is not None else [])):
            held = memory.tensor(launch.arguments.get(base))
            if held is not None and _number(launch, parameter) in held.own:
                return True
        return False

    def meanings(self, parameter: str) -> tuple[Stride, ...]:
        """The strides that a parameter may be, first that of which its name speaks."""
        found = self.memory.meanings.get(self.number(parameter), ())
        named = self.named(parameter)
        return tuple(sorted(found, key=lambda stride: stride.tensor != named))

    def is_certain(self, parameter: str) -> bool:
        """Whether a parameter's number can only be a stride, or is one of the tensor of which its name speaks."""
        named = self.named(parameter)
        is_given = self.number(parameter) in self.memory.given
        return is_given or any(stride.tensor == named for stride in self.meanings(parameter))

    def named(self, parameter: str) -> str:
        """The tensor of whose stride a parameter's name speaks; "" where it does not tell."""
        word, _ = stride_of(parameter, set(self.plain_names.values()))
        held = [self.tensor_of(name) for name, own in self.plain_names.items() if word and own == word]
        return held[0].name if held and held[0] is not None else ""

    def parameters_of(self, base: str, axis: int) -> list[str]:
        """The parameters that are a tensor's own stride along an axis, first those that are called so."""
        held = self.tensor_of(base)
        if held is None or held.shape[axis] < 2:
            return []
        found = [name for name in self.strides if self.number(name) == held.strides[axis]]
        named = [name for name in found if self.named(name) in ("", held.name)]
        return sorted(named, key=lambda name: self.named(name) != held.name)

    @cached_property
    def strides(self) -> tuple[str, ...]:
        """The parameters that may be strides."""
        return tuple(name for name, value in self.launch.arguments.items() if self._may_be_stride(name, value))

    @cached_property
    def mentioned(self) -> Mapping[str, int]:
        """How often each name is read in the kernel's text."""
        if isinstance(self.function, CudaKernel):
            return self.function.mentioned
        nodes = (node for statement in self.function.tree.body for node in ast.walk(statement))
        return Counter(node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load))


def by_name(function: Function, pointers: Mapping[str, Any]) -> Record:
    """Reads a kernel that was never launched.

    Args:
        pointers: its parameters that are pointers.
    """
    given: dict[str, Value] = {name: opaque(name=name) for name in function.parameters}
    given |= {name: stride_value(name) for name in function.parameters if is_stride(name)}
    return read_kernel(function, given | {name: AddressValue(frozenset({name})) for name in pointers})


def stride_value(parameter: str) -> Amount:
    """A parameter that is a stride."""
    return Amount((Term((StrideFactor(parameter, ()),)),))


def _number(launch: HostLaunch, parameter: str) -> int:
    name, bracket, at = parameter.partition("[")
    value = launch.arguments[name]
    return int(value[int(at[:-1])] if bracket else value)
