"""The tensors and strides of a launched kernel: which tensor each pointer is, whose stride each number may be."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ..frontends.triton.launches import storage_of
from ..model.intermediates import KINDS
from ..source.parameter_names import is_stride, stride_of, word_of
from ..source.triton_source import Function
from .catching import Caught, HostLaunch, tensor_in
from .pointers import Address, ProductSum, Record, Term, Value, read_kernel, variable

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

    def axis_like(self, other: Stride) -> int | None:
        """The axis that another tensor's stands for: of its kind, or of its family; else that of the same number."""
        if not self.kinds or not other.kind:
            return other.axis if other.axis < len(self.shape) else None
        alike = [
            axis for axis, kind in enumerate(self.kinds) if KINDS.get(kind, kind) == KINDS.get(other.kind, other.kind)
        ]
        return self.kinds.find(other.kind) if other.kind in self.kinds else next(iter(alike), None)


class CallTensors:
    """The tensors of one call, whose strides tell what numbers mean."""

    def __init__(self, caught: Caught) -> None:
        self._held = {
            storage_of(tensor): _views_of(caught, name, tensor, True) for name, tensor in caught.inputs.items()
        }
        for parameter, value in (pair for launch in caught.launches for pair in launch.arguments.items()):
            if (tensor := tensor_in(value)) is not None:
                address = storage_of(tensor)
                if address not in self._held:
                    name = (caught.storages or {}).get(address, "").lower() or word_of(parameter)
                    self._held[address] = _views_of(caught, name, tensor, False)
                self._held[address].own.update(tensor.stride())
        self.given = caught.given
        """The numbers that are a stride and nothing else."""

    def tensor(self, value: Any) -> TensorViews | None:
        """The tensor that an argument points into."""
        tensor = tensor_in(value)
        return None if tensor is None else self._held.get(storage_of(tensor))

    def strides_of(self, number: int) -> list[Stride]:
        """The strides that a number is, those of axes longer than 1."""
        sizes = [(held, axis) for held in self._held.values() for axis, size in enumerate(held.shape) if size > 1]
        return [held.stride(axis) for held, axis in sizes if held.strides[axis] == number > 0]


def _views_of(caught: Caught, name: str, tensor: Tensor, is_given: bool) -> TensorViews:
    case, shape, strides = caught.case, tuple(tensor.shape), tuple(tensor.stride())
    kinds = case.input_axes(name) or (case.axes(name) if case.exists(name) else "")
    # What a target allocates may have its axes in another order than its name says.
    is_certain = shape == tuple(map(case.size, kinds)) and (is_given or len(set(shape)) == len(shape))
    return TensorViews(name, shape, strides, kinds if is_certain else "", is_given, set(strides))


@dataclass(frozen=True)
class KernelView:
    """One kernel in one launch."""

    launch: HostLaunch
    function: Function
    memory: CallTensors

    @property
    def name(self) -> str:
        return self.launch.name

    @cached_property
    def tensors(self) -> dict[str, TensorViews]:
        """By the parameters of pointers."""
        found = ((name, self.memory.tensor(value)) for name, value in self.launch.arguments.items())
        return {name: held for name, held in found if held is not None}

    @cached_property
    def tensor_words(self) -> dict[str, str]:
        """The names of tensors by the words that strides may be called after."""
        called = {word_of(name): held.name for name, held in self.tensors.items()}
        return {held.name: held.name for held in self.tensors.values()} | called

    @cached_property
    def strides(self) -> dict[str, int]:
        """The numbers of the parameters that may be strides; those of a tuple as "strides[1]"."""
        found: dict[str, int] = {}
        for name, value in self.launch.arguments.items():
            parts = enumerate(value) if isinstance(value, (tuple, list)) else ()
            for word, each in ((name, value), *((f"{name}[{at}]", each) for at, each in parts)):
                is_named = is_stride(name) and not name.isupper()
                if type(each) is int and (each in self.memory.given or is_named):
                    found[word] = each
        return found

    @cached_property
    def record(self) -> Record:
        """What its pointers do. What the constants of the launch rule out is not followed."""
        given, constants = self.launch.arguments, self.launch.constants
        plain = {name: x for name, x in given.items() if name in constants or isinstance(x, (bool, str, type(None)))}
        return read_kernel(self.function, {name: self._value(name, x) for name, x in given.items()}, plain)

    def _value(self, name: str, value: Any) -> Value:
        if name in self.tensors:
            return Address(frozenset({name}))
        if isinstance(value, (tuple, list)):
            return tuple(self._value(f"{name}[{at}]", each) for at, each in enumerate(value))
        return ProductSum((Term(name),)) if name in self.strides else variable(name)

    def meanings(self, parameter: str) -> list[Stride]:
        """The strides that a parameter is: those of which its name speaks, else those that alone have its number."""
        number, named = self.strides[parameter], self.named(parameter)
        found = self.memory.strides_of(number)
        return [each for each in found if each.tensor == named] or (found if number in self.memory.given else [])

    def named(self, parameter: str) -> str:
        """The tensor of whose stride a parameter's name speaks; "" where it does not tell."""
        return self.tensor_words.get(stride_of(parameter, set(self.tensor_words))[0], "")

    def parameters_of(self, held: TensorViews, axis: int) -> list[str]:
        """The parameters that are a tensor's own stride along an axis, first those that are called so."""
        own = [name for name, number in self.strides.items() if number == held.strides[axis] and held.shape[axis] > 1]
        named = [name for name in own if self.named(name) in ("", held.name)]
        return sorted(named, key=lambda name: self.named(name) != held.name)


def views_of(calls: Iterable[Caught | None]) -> Iterator[KernelView]:
    """The Triton kernels that were launched in some calls, as they are in each launch."""
    for call in filter(None, calls):
        tensors = CallTensors(call)
        yield from (KernelView(launch, launch.function, tensors) for launch in call.launches if launch.function)
