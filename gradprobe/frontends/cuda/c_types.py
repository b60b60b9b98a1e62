"""A launch that is planned, and arguments as C values, by the types that their parameters are declared as."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...model.failures import TargetFailure
from .cuda_syntax import Parameter
from .source import CudaSource, KernelEntry

if TYPE_CHECKING:
    from torch import Tensor

Sizes = tuple[int, int, int]
STREAM = "cudaStream_t"
POINTER, SIGNED, UNSIGNED, FLOATING, OTHER = range(5)


class Taken(NamedTuple):
    """The type of one parameter: gp_parameter of the header."""

    kind: int
    bytes: int
    of: int
    """Of a pointer, the bytes of a number that it points to; 0 where that is none."""


def structure(*fields: tuple[Any, str]) -> Any:
    """A structure of the runtime's, by types, each with the names of the fields of that type."""
    every = [(name, kind) for kind, names in fields for name in names.split()]
    return type("Structure", (ctypes.Structure,), {"_fields_": every})


@dataclass(frozen=True)
class LaunchPlan:
    """One launch whose arguments fit, for either backend."""

    kernel: KernelEntry
    grid: Sizes
    block: Sizes
    shared_bytes: int
    """Of dynamic shared memory."""
    arguments: int
    """Where the addresses of its arguments stand."""
    tensors: Sequence[tuple[str, Tensor]]
    """What it may touch, by its parameters' names."""
    caller: int = 0
    """On a CPU, the address of the function that calls it with these arguments."""


def named_tensors(parameters: Sequence[Parameter], arguments: Sequence[Any]) -> list[tuple[str, Tensor]]:
    """(the parameter's name, the tensor) of each argument that is one."""
    given = zip(parameters, arguments, strict=False)
    return [(parameter.name, argument) for parameter, argument in given if hasattr(argument, "data_ptr")]


def device_of(who: str, tensors: Sequence[tuple[str, Tensor]]) -> str:
    """ "cpu" or "cuda", where all tensors are; raises TargetFailure where they are on several, or on another."""
    devices = {tensor.device.type for _, tensor in tensors} or {"cpu"}
    if len(devices) > 1 or devices - {"cpu", "cuda"}:
        raise TargetFailure(f"{who} got tensors on {' and '.join(sorted(devices))}", "move them to one device")
    return devices.pop()


def c_values(who: str, parameters: Sequence[Parameter], types: Sequence[Taken], arguments: Sequence[Any]) -> list[Any]:
    """Each argument as a C value; raises TargetFailure where one does not fit its parameter, or some are too many."""
    if len(arguments) != len(parameters):
        takes = ", ".join(parameter.name or parameter.type for parameter in parameters)
        words = f"{who} takes {len(parameters)} arguments, got {len(arguments)}"
        raise TargetFailure(words, f"it takes: {takes}")
    found = []
    for parameter, taken, argument in zip(parameters, types, arguments, strict=True):
        where = f"{who}: parameter {parameter.name!r}"
        c_type = ctypes.c_bool if parameter.type == "bool" else _NUMBERS.get((taken.kind, taken.bytes))
        if taken.kind == POINTER:
            found.append(_pointer(where, parameter, taken, argument))
        elif c_type is not None:
            found.append(_number(where, c_type, argument))
        else:
            words = f"{where} is a {parameter.type}, neither a pointer nor a number"
            raise TargetFailure(words, "call a function of the file's host code that makes it and launches the kernel")
    return found


def addresses_of(values: Sequence[Any]) -> Any:
    """The addresses of C values, as a C array."""
    return (ctypes.c_void_p * max(1, len(values)))(*map(ctypes.addressof, values))


def _number(where: str, c_type: Any, argument: Any) -> Any:
    number = argument.item() if isinstance(argument, np.generic) else argument
    most = _LARGEST.get(c_type)
    if not isinstance(number, int) and (most is None or not isinstance(number, float)):
        raise TargetFailure(f"{where} is {'a whole number' if most is None else 'a number'}, got {argument!r}")
    if most is None:
        fits = c_type(number).value == number
    else:
        fits = number != number or abs(number) == math.inf or abs(number) <= most
    if not fits:
        raise TargetFailure(f"{where} has {ctypes.sizeof(c_type)} bytes, and {number:,} does not fit")
    return c_type(number)


def _pointer(where: str, parameter: Parameter, taken: Taken, argument: Any) -> Any:
    import torch

    if argument is None:
        return ctypes.c_void_p(0)
    if not isinstance(argument, torch.Tensor):
        raise TargetFailure(f"{where} is a pointer, got {argument!r}", "pass a tensor, or None for a null pointer")
    if taken.of not in (0, argument.element_size()):
        dtype = str(argument.dtype).removeprefix("torch.")
        raise TargetFailure(f"{where} is {parameter.type}, of {taken.of} bytes an element, got {dtype}")
    return ctypes.c_void_p(argument.data_ptr())


_LARGEST = {ctypes.c_float: float(np.finfo(np.float32).max), ctypes.c_double: float(np.finfo(np.float64).max)}
_NUMBERS: Mapping[tuple[int, int], Any] = {
    **{(SIGNED, size): getattr(ctypes, f"c_int{8 * size}") for size in (1, 2, 4, 8)},
    **{(UNSIGNED, size): getattr(ctypes, f"c_uint{8 * size}") for size in (1, 2, 4, 8)},
    (FLOATING, 4): ctypes.c_float,
    (FLOATING, 8): ctypes.c_double,
}
# The types as NVRTC has them on 64-bit Linux.
_NAMES = {
    (SIGNED, 1): "char int8_t",
    (SIGNED, 2): "short int16_t",
    (SIGNED, 4): "int int32_t",
    (SIGNED, 8): "long int64_t ptrdiff_t intptr_t ssize_t",
    (UNSIGNED, 1): "bool uint8_t",
    (UNSIGNED, 2): "ushort uint16_t",
    (UNSIGNED, 4): "uint uint32_t",
    (UNSIGNED, 8): "ulong uint64_t size_t uintptr_t",
    (FLOATING, 4): "float",
    (FLOATING, 8): "double",
    (OTHER, 2): "half __half nv_bfloat16 __nv_bfloat16",
}
_TYPES = {name: kind for kind, names in _NAMES.items() for name in names.split()}


def types_as_written(source: CudaSource, parameters: Sequence[Parameter]) -> list[Taken]:
    """What parameters such as "unsigned long long", "float*" or "real" are, by their declarations."""
    found = []
    for declared in (parameter.type for parameter in parameters):
        kind, size = kind_and_bytes(source, declared.rstrip("*"))
        is_pointer = declared.endswith("*") or declared == STREAM
        size = 8 if declared.endswith("**") else size
        found.append(Taken(POINTER, 8, size) if is_pointer else Taken(kind, size, 0))
    return found


def kind_and_bytes(source: CudaSource, declared: str) -> tuple[int, int]:
    """Of a number by its type, such as (UNSIGNED, 8); (OTHER, 0) of anything else."""
    for _ in range(8):  # an alias of an alias
        declared = " ".join(source.aliases.get(word, word) for word in declared.replace("std::", "").split())
    words = {*declared.split()} - {"const", "volatile", "signed"}
    names = words - {"unsigned", "int"} or {"int"}
    kind, size = _TYPES.get(names.pop(), (OTHER, 0)) if len(names) == 1 else (OTHER, 0)
    return (UNSIGNED if "unsigned" in words else kind), size
