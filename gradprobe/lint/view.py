"""The tensors and strides of a launched kernel: which tensor each pointer is, whose stride each number may be."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ..inputs.placement import spanned
from ..model.intermediates import KINDS
from ..runtime.launches import storage_of
from ..source.parameter_names import is_stride, stride_of, word_of
from ..source.text import SourceLine
from ..source.triton_source import Function
from .catching import Caught
from .cuda import CudaKernel, read_cuda
from .launch_arguments import HostLaunch, tensor_in
from .pointers import AddressValue, LaunchConstant, Record, Value, opaque, read_kernel, stride_value

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

    def axis_like(self, kind: str) -> int | None:
        """The axis of a kind, or of its family where that is the only one: heads are heads."""
        if kind in self.kinds:
            return self.kinds.index(kind)
        found = [axis for axis, letter in enumerate(self.kinds) if KINDS.get(letter) == KINDS.get(kind, "")]
        return found[0] if len(found) == 1 or (found and kind in "mn") else None


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
                    name = caught.storages.get(address, "").lower() or word_of(parameter)
                    self._held[address] = _views_of(caught, name, tensor, False)
                self._held[address].own.update(tensor.stride())
        self.meanings: dict[int, list[Stride]] = {}
        """The strides that are a number, those of axes longer than 1."""
        self.given = caught.given
        """The numbers that are a stride and nothing else."""
        for held in self._held.values():
            for axis, (size, step) in enumerate(zip(held.shape, held.strides, strict=True)):
                if size > 1 and step > 0:
                    self.meanings.setdefault(step, []).append(held.stride(axis))

    def tensor(self, value: Any) -> TensorViews | None:
        """The tensor that an argument points into."""
        tensor = tensor_in(value)
        return None if tensor is None else self._held.get(storage_of(tensor))

    def is_as_long_as(self, flat: TensorViews, name: str) -> bool:
        """Whether a row of elements that the target allocated has room for a tensor as that lies: it lies so too."""
        others = [spanned(each.shape, each.strides) for each in self._held.values() if each.name == name]
        return not flat.is_given and len(flat.shape) == 1 and any(span <= flat.shape[0] for span in others)


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

    @property
    def function(self) -> Function | CudaKernel:
        return self.launch.function

    @property
    def name(self) -> str:
        return self.launch.function.name

    @cached_property
    def tensors(self) -> dict[str, TensorViews]:
        """By the parameters of pointers."""
        found = ((name, self.memory.tensor(value)) for name, value in self.launch.arguments.items())
        return {name: held for name, held in found if held is not None}

    @cached_property
    def bare_names(self) -> dict[str, str]:
        """What the parameters of pointers are called without what says that they are pointers."""
        return {name: word_of(name) for name in self.tensors}

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
        if isinstance(self.function, CudaKernel):
            return read_cuda(self.function, frozenset(self.strides), frozenset(self.bare_names))
        return read_kernel(self.function, {name: self._value(name, x) for name, x in self.launch.arguments.items()})

    def _value(self, name: str, value: Any) -> Value:
        if name in self.tensors:
            return AddressValue(frozenset({name}))
        if isinstance(value, (tuple, list)):
            return tuple(self._value(f"{name}[{at}]", each) for at, each in enumerate(value))
        if name in self.strides:
            return stride_value(name)
        if value is None or name.partition("[")[0] in self.launch.constants or isinstance(value, (bool, str)):
            return LaunchConstant(value)
        return opaque(name=name)

    def meanings(self, parameter: str) -> list[Stride]:
        """The strides that a parameter is: those of which its name speaks, else those that alone have its number."""
        number, named = self.strides[parameter], self.named(parameter)
        found = self.memory.meanings.get(number, [])
        return [each for each in found if each.tensor == named] or (found if number in self.memory.given else [])

    def named(self, parameter: str) -> str:
        """The tensor of whose stride a parameter's name speaks; "" where it does not tell."""
        words = {held.name: held.name for held in self.tensors.values()}
        words |= {word: self.tensors[name].name for name, word in self.bare_names.items()}
        word, _ = stride_of(parameter, set(words))
        return words.get(word, "")

    def parameters_of(self, base: str, axis: int) -> list[str]:
        """The parameters that are a tensor's own stride along an axis, first those that are called so."""
        held = self.tensors[base]
        if held.shape[axis] < 2:
            return []
        found = [name for name, number in self.strides.items() if number == held.strides[axis]]
        named = [name for name in found if self.named(name) in ("", held.name)]
        return sorted(named, key=lambda name: self.named(name) != held.name)

    @cached_property
    def mentioned(self) -> Mapping[str, int]:
        """How often each name is read in the kernel's text."""
        if isinstance(self.function, CudaKernel):
            return self.function.mentioned
        nodes = (node for statement in self.function.tree.body for node in ast.walk(statement))
        return Counter(node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load))

    def product_at(self, spot: SourceLine) -> str:
        """The product that a name stands in, as it is written; the name alone where it stands in none."""
        if isinstance(self.function, CudaKernel):
            return self.function.product_at(spot) or spot.text
        for node in ast.walk(self.function.tree):
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
                names = (side for side in (node.left, node.right) if isinstance(side, ast.Name))
                if any(self.function.line_of(name) == spot for name in names):
                    return ast.unparse(node)
        return spot.text
