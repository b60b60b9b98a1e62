"""A launch, and arguments as C values, by the types that their parameters are declared as."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...model.failures import TargetFailure
from .cuda_syntax import Declaration
from .source import CudaSource, KernelEntry

if TYPE_CHECKING:
    from torch import Tensor

STREAM = "cudaStream_t"
POINTER, SIGNED, UNSIGNED, FLOATING, OTHER = range(5)


class Taken(NamedTuple):
    """The type of one parameter: gp_parameter of the header."""

    kind: int
    bytes: int
    of: int
    """Of a pointer, the bytes of a number that it points to; 0 where that is none."""


# The types as NVRTC has them on 64-bit Linux.
_NAMES = {
    (SIGNED, 1): "char int8_t",
    (SIGNED, 2): "short int16_t",
    (SIGNED, 4): "int int32_t",
    (SIGNED, 8): "long int64_t ptrdiff_t",
    (UNSIGNED, 1): "bool uint8_t",
    (UNSIGNED, 2): "uint16_t",
    (UNSIGNED, 4): "uint uint32_t",
    (UNSIGNED, 8): "uint64_t size_t",
    (FLOATING, 4): "float",
    (FLOATING, 8): "double",
    (OTHER, 2): "half __half nv_bfloat16 __nv_bfloat16",
}
_TYPES = {name: kind for kind, names in _NAMES.items() for name in names.split()}


@dataclass(frozen=True)
class LaunchPlan:
    """One launch, whose arguments fit."""

    kernel: KernelEntry
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    """Of dynamic shared memory."""
    arguments: int
    """Where the addresses of its arguments stand."""
    tensors: Sequence[tuple[str, Tensor]]
    """What it may touch, by its parameters' names."""
    caller: int = 0
    """On a CPU, the address of the function that calls it with these arguments."""


# What fits its parameter.
_FITS = (
    "a pointer takes a tensor of its type or None, a number one that it can hold; what takes a structure is "
    "launched by a function of the file's host code"
)


def structure(*fields: tuple[Any, str]) -> Any:
    """A structure of the runtime's, by types, each with the names of the fields of that type."""
    every = [(name, kind) for kind, names in fields for name in names.split()]
    return type("Structure", (ctypes.Structure,), {"_fields_": every})


def kind_and_bytes(source: CudaSource, declared: str) -> tuple[int, int]:
    """Of a number by its type, such as (UNSIGNED, 8); (OTHER, 0) of anything else."""
    for _ in range(8):  # an alias of an alias
        words = declared.replace("std::", "").split()
        declared = " ".join(source.aliases.get(word, word) for word in words)
    names = {*declared.split()} - {"const", "volatile", "signed"}
    plain = names - {"unsigned", "int"} or {"int"}
    kind, size = _TYPES.get(" ".join(plain), (OTHER, 0))
    return (UNSIGNED if "unsigned" in names else kind), size


def types_as_written(source: CudaSource, parameters: Sequence[Declaration]) -> list[Taken]:
    """What parameters such as "unsigned long long", "float*" or "real" are, by their declarations."""
    found = []
    for declared in (parameter.type for parameter in parameters):
        kind, size = kind_and_bytes(source, declared.rstrip("*"))
        if declared.endswith("*") or declared == STREAM:
            found.append(Taken(POINTER, 8, 8 if declared.endswith("**") else size))
        else:
            found.append(Taken(kind, size, 0))
    return found


def c_values(
    who: str, parameters: Sequence[Declaration], types: Sequence[Taken], arguments: Sequence[Any]
) -> list[Any]:
    """Each argument as a C value; raises TargetFailure where one does not fit its parameter, or some are too many."""
    if len(arguments) != len(parameters):
        takes = ", ".join(parameter.name or parameter.type for parameter in parameters)
        words = f"{who} takes {len(parameters)} arguments, got {len(arguments)}"
        raise TargetFailure(words, f"it takes: {takes}")
    found = []
    for parameter, taken, argument in zip(parameters, types, arguments, strict=True):
        value = _c_value(taken, argument, is_bool=parameter.type == "bool")
        if value is None:
            got = f"a tensor of {argument.dtype}" if hasattr(argument, "data_ptr") else repr(argument)
            raise TargetFailure(f"{who}: parameter {parameter.name!r} is {parameter.type}, got {got}", _FITS)
        found.append(value)
    return found


def addresses_of(values: Sequence[Any]) -> Any:
    """The addresses of C values, as a C array."""
    return (ctypes.c_void_p * max(1, len(values)))(*map(ctypes.addressof, values))


def _c_value(taken: Taken, argument: Any, *, is_bool: bool) -> Any:
    """An argument as a C value; None where it does not fit."""
    if taken.kind == POINTER:
        if argument is None:
            return ctypes.c_void_p(0)
        fits = hasattr(argument, "data_ptr") and taken.of in (0, argument.element_size())
        return ctypes.c_void_p(argument.data_ptr()) if fits else None
    number = argument.item() if isinstance(argument, np.generic) else argument
    is_real = taken.kind == FLOATING
    if taken.kind == OTHER or not isinstance(number, (int, float) if is_real else int):
        return None
    sign = "u" if taken.kind == UNSIGNED else ""
    name = "bool" if is_bool else f"{sign}int{8 * taken.bytes}"
    if is_real:
        name = "float" if taken.bytes == 4 else "double"
    try:
        value = getattr(ctypes, f"c_{name}")(number)
    except OverflowError:  # of a whole number as a float
        return None
    is_lost = abs(value.value) == math.inf and abs(number) != math.inf if is_real else value.value != number
    return None if is_lost else value
