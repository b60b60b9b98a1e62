"""View: a kernel as it was read, with what its parameters mean in one launch, or by their names."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..running.taps.functions import Function
from .cuda import CudaKernel, read_cuda
from .launch import Launch
from .memory import Held, Memory, Stride
from .names import is_stride, stride_of, word_of
from .reading import read_kernel
from .record import Record
from .values import Amount, Factor, Known, Parts, Pointer, Term, Value, opaque


@dataclass(frozen=True)
class View:
    """One kernel in one launch."""

    launch: Launch
    memory: Memory
    record: Record
    ordinary: tuple[Launch, Memory] | None = None
    """The same launch where what the target allocates lies as it asked for."""

    @property
    def function(self) -> Function | CudaKernel:
        return self.launch.function

    @property
    def file(self) -> str:
        """In which the kernel stands."""
        return self.function.file

    @property
    def name(self) -> str:
        return self.launch.name

    @cached_property
    def words(self) -> dict[str, str]:
        """What the parameters of pointers are called without what says that they are pointers."""
        return {name: word_of(name) for name, value in self.launch.arguments.items() if self.memory.tensor(value)}

    def number(self, parameter: str) -> int:
        """The number that a parameter is, also one of a tuple: "strides[1]"."""
        return _number(self.launch, parameter)

    def held(self, base: str) -> Held | None:
        """The tensor of a pointer's parameter."""
        return self.memory.tensor(self.launch.arguments.get(base))

    def owns(self, base: str, parameter: str) -> bool:
        """Whether a parameter is a stride of the tensor that a pointer points into, here or where nobody interferes."""
        launches = [(self.launch, self.memory), *([self.ordinary] if self.ordinary is not None else [])]
        return any(memory.owns(launch.arguments.get(base), _number(launch, parameter)) for launch, memory in launches)

    def meanings(self, parameter: str) -> tuple[Stride, ...]:
        """The strides that a parameter may be, first that of which its name speaks."""
        found = self.memory.meanings.get(self.number(parameter), ())
        named = self.named(parameter)
        return tuple(sorted(found, key=lambda stride: stride.tensor != named))

    def is_certain(self, parameter: str) -> bool:
        """Whether a parameter's number can only be a stride, or is one of the tensor of which its name speaks."""
        number = self.number(parameter)
        named = self.named(parameter)
        return number in self.memory.given or any(stride.tensor == named for stride in self.meanings(parameter))

    def named(self, parameter: str) -> str:
        """The tensor of whose stride a parameter's name speaks; "" where it does not tell."""
        word, _ = stride_of(parameter, set(self.words.values()))
        held = [self.held(name) for name, own in self.words.items() if word and own == word]
        return held[0].name if held and held[0] is not None else ""

    def parameters_of(self, base: str, axis: int) -> list[str]:
        """The parameters that are a tensor's own stride along an axis, first those that are called so."""
        held = self.held(base)
        if held is None or held.shape[axis] < 2:
            return []
        found = [name for name in self.strides if self.number(name) == held.strides[axis]]
        named = [name for name in found if self.named(name) in ("", held.name)]
        return sorted(named, key=lambda name: self.named(name) != held.name)

    @cached_property
    def strides(self) -> tuple[str, ...]:
        """The parameters that may be strides."""
        return tuple(name for name, value in self.launch.arguments.items() if _may_be_stride(name, value, self.memory))

    @cached_property
    def mentioned(self) -> dict[str, int]:
        """How often each name is read in the kernel's text."""
        if isinstance(self.function, CudaKernel):
            return self.function.mentioned
        nodes = [node for statement in self.function.tree.body for node in ast.walk(statement)]
        found: dict[str, int] = {}
        for node in nodes:
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                found[node.id] = found.get(node.id, 0) + 1
        return found


def view_of(launch: Launch, memory: Memory, ordinary: tuple[Launch, Memory] | None = None) -> View:
    """Reads a launched kernel; what its constants rule out is not followed."""
    arguments = {
        name: _value(name, value, memory, is_constant=name in launch.constants)
        for name, value in launch.arguments.items()
    }
    if isinstance(launch.function, CudaKernel):
        strides = frozenset(name for name, value in launch.arguments.items() if _may_be_stride(name, value, memory))
        pointers = frozenset(name for name, value in launch.arguments.items() if memory.tensor(value) is not None)
        return View(launch, memory, read_cuda(launch.function, strides, pointers), ordinary)
    return View(launch, memory, read_kernel(launch.function, arguments), ordinary)


def by_name(function: Function, pointers: Mapping[str, Any]) -> Record:
    """Reads a kernel that was never launched.

    Args:
        pointers: its parameters that are pointers.
    """
    arguments: dict[str, Value] = {}
    for name in function.parameters:
        value: Value = Pointer(frozenset({name})) if name in pointers else opaque(name=name)
        arguments[name] = stride_value(name) if name not in pointers and is_stride(name) else value
    return read_kernel(function, arguments)


def stride_value(parameter: str) -> Amount:
    """A parameter that is a stride."""
    return Amount((Term((Factor(parameter, ()),)),))


def _number(launch: Launch, parameter: str) -> int:
    name, bracket, at = parameter.partition("[")
    value = launch.arguments[name]
    return int(value[int(at[:-1])] if bracket else value)


def _value(name: str, value: Any, memory: Memory, *, is_constant: bool) -> Value:
    if memory.tensor(value) is not None:
        return Pointer(frozenset({name}))
    if isinstance(value, (tuple, list)):
        return Parts(
            tuple(_value(f"{name}[{at}]", each, memory, is_constant=is_constant) for at, each in enumerate(value))
        )
    if _may_be_stride(name, value, memory):
        return stride_value(name)
    if value is None or is_constant or isinstance(value, (bool, str)):
        return Known(value)
    return opaque(name=name)


def _may_be_stride(name: str, value: Any, memory: Memory) -> bool:
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return is_number and (value in memory.given or (is_stride(name) and not name.isupper()))
