"""KernelCall: what a launch was given, read once: tensors by dtype and storage, and everything else as it is."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Pointed:
    """Stands for a tensor that a kernel gets a pointer to."""

    dtype: Any
    storage: int = 0

    def data_ptr(self) -> int:
        """An address that is aligned; on whether a tensor's is, no error depends."""
        return 16

    def __repr__(self) -> str:
        return str(self.dtype)


@dataclass(frozen=True)
class KernelCall:
    """One launch of a kernel, without its tensors."""

    kernel: Any
    given: Mapping[str, Any]
    """Its arguments and options by name."""
    is_warmup: bool = False
    """Whether the kernel was only to be compiled."""

    @property
    def name(self) -> str:
        return str(self.kernel.fn.__name__)

    @property
    def key(self) -> tuple[Any, ...]:
        """What it is compiled by: launches of one key compile alike."""
        constants = self.constants
        kinds = {name: repr(value) if name in constants else _kind(value) for name, value in self.given.items()}
        return id(self.kernel), *sorted(kinds.items())

    @property
    def constants(self) -> dict[str, Any]:
        """The values of its constants, those that are its parameters' defaults left out."""
        return {name: value for name, value in self.given.items() if name in constants_of(self.kernel.fn)}

    @property
    def pointers(self) -> list[tuple[str, int]]:
        """(parameter, address of the storage) of the tensors."""
        return [(name, part.storage) for name, value in self.given.items() for _, part, _ in tensors_in(value)]

    @property
    def numbers(self) -> list[int]:
        """The whole numbers, strides among them."""
        return list(_whole_numbers(self.given.values()))


def called(kernel: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> KernelCall:
    """A launch as `kernel.run` is given it."""
    given = {**dict(zip(kernel.arg_names, args, strict=False)), **kwargs}
    given.pop("grid", None)
    is_warmup = bool(given.pop("warmup", False))
    return KernelCall(kernel, {name: _described(value) for name, value in given.items()}, is_warmup)


@functools.cache
def constants_of(function: Any) -> frozenset[str]:
    """The parameters of a kernel's function that are constants of the compiled code."""
    parameters = inspect.signature(function).parameters.values()
    return frozenset(each.name for each in parameters if "constexpr" in str(each.annotation))


def tensors_in(given: Any, name: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(name, tensor, what a kernel gets a pointer to) of an argument and of its parts."""
    if isinstance(given, tuple):
        for at, part in enumerate(given):
            yield from tensors_in(part, f"{name}[{at}]")
    elif hasattr(given, "data_ptr"):
        # Triton wraps a tensor whose bits it is to take for another dtype.
        yield name, getattr(given, "base", given), given
    elif hasattr(given, "block_shape") and hasattr(given, "base"):
        yield from tensors_in(given.base, name)


def storage_of(tensor: Tensor) -> int:
    """A number that all views of one storage share: its address. A fake tensor has none; it gives its record's."""
    from torch._subclasses import FakeTensor

    storage = tensor.untyped_storage()
    return int(storage._cdata if isinstance(tensor, FakeTensor) else storage.data_ptr())


def _described(argument: Any) -> Any:
    if isinstance(argument, tuple):
        parts = tuple(map(_described, argument))
        return argument._make(parts) if hasattr(argument, "_make") else parts
    if hasattr(argument, "data_ptr"):
        return Pointed(argument.dtype, storage_of(getattr(argument, "base", argument)))
    if hasattr(argument, "block_shape") and hasattr(argument, "base"):
        descriptor = copy.copy(argument)
        descriptor.base = _described(argument.base)
        return descriptor
    return argument


def _kind(argument: Any) -> Any:
    """What of an argument that is no constant decides how it is compiled."""
    if type(argument) is int:
        return "int", argument == 1, argument.bit_length() > 31  # 1 is taken for a constant
    if isinstance(argument, (bool, float)):
        return type(argument).__name__
    return tuple(map(_kind, argument)) if isinstance(argument, tuple) else repr(argument)


def _whole_numbers(arguments: Iterable[Any]) -> Iterator[int]:
    for argument in arguments:
        if type(argument) is int:
            yield argument
        elif isinstance(argument, (tuple, list)):
            yield from _whole_numbers(argument)
        elif hasattr(argument, "block_shape"):
            yield from getattr(argument, "strides", ())
