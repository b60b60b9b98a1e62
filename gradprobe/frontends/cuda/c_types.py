"""A launch, and its arguments as C values."""

import contextlib
import ctypes
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...model.failures import TargetFailure
from .cuda_syntax import Declaration, without_comments
from .source import CudaSource, KernelEntry

POINTER = ctypes.c_void_p
HALF = ctypes.c_uint16 * 1  # a float of 16 bits
_REAL = (ctypes.c_float, ctypes.c_double)
# By their names in C, as NVRTC has them on 64-bit Linux.
NUMBERS: dict[str, Any] = {"char": ctypes.c_int8, "ptrdiff_t": ctypes.c_int64}
for _name in ["bool", "short", "int", "uint", "long", "size_t", "float", "double"]:
    NUMBERS[_name] = getattr(ctypes, f"c_{_name}")
for _name in ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]:
    NUMBERS[f"{_name}_t"] = getattr(ctypes, f"c_{_name}")
NUMBERS |= dict.fromkeys(("half", "__half", "nv_bfloat16", "__nv_bfloat16"), HALF)
_FITS = (
    "a pointer takes a tensor of its type or None, a number what it can hold; what takes a structure is "
    "launched by a function of the file"
)
# A number's ctypes type; the bytes of what a pointer points at, 0 if unknown; or None.
ParameterType = Any


@dataclass(frozen=True)
class LaunchPlan:
    kernel: KernelEntry
    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared_bytes: int
    arguments: int
    tensors: Sequence[tuple[str, Any]]
    caller: int


def structures(header: str) -> dict[str, Any]:
    found = {**NUMBERS, "char": ctypes.c_char, "gp_caller": POINTER}
    for name, body in re.findall(
        r"struct (\w+) \{(.*?)\};", without_comments(header), re.DOTALL
    ):
        fields = []
        for kind, variables in re.findall(r"(?:const )?(\w+)([^;]+);", body):
            for pointer, field, size in re.findall(r"(\**)\s*(\w+)(?:\[(\d+)\])?", variables):
                type_ = POINTER if pointer else found[kind]
                fields.append((field, type_ * int(size) if size else type_))
        found[name] = type(name, (ctypes.Structure,), {"_fields_": fields})
    return found


def number_type(source: CudaSource, declared: str) -> Any:
    for _ in range(8):  # an alias of an alias
        declared = re.sub(r"\w+", lambda word: source.aliases.get(word[0], word[0]), declared)
    words = {*declared.replace("std::", "").split()} - {"const", "volatile", "signed"}
    number = NUMBERS.get(" ".join(words - {"unsigned", "int"} or {"int"}))
    if number is not None and "unsigned" in words:
        return getattr(ctypes, number.__name__.replace("c_", "c_u"))
    return number


def written_types(source: CudaSource, parameters: Sequence[Declaration]) -> list[ParameterType]:
    found = list[ParameterType]()
    for declared in (parameter.type for parameter in parameters):
        is_deep, is_pointer = declared.endswith("**"), declared.endswith("*")
        number = POINTER if is_deep else number_type(source, declared.rstrip("*"))
        size = ctypes.sizeof(number) if number else 0
        found.append(size if is_pointer else number)
    return found


class Arguments:
    def __init__(
        self, who: str, parameters: Sequence[Declaration], given: Sequence[Any]
    ) -> None:
        if len(given) != len(parameters):
            takes = ", ".join(parameter.name or parameter.type for parameter in parameters)
            words = f"{who} takes {len(parameters)} arguments, got {len(given)}"
            raise TargetFailure(words, f"it takes: {takes}")
        self._who, self._given = who, [*zip(parameters, given, strict=True)]
        self.tensors = list[tuple[str, Any]]()
        for parameter, value in self._given:
            if hasattr(value, "data_ptr"):
                self.tensors.append((parameter.name, value))
        devices = {tensor.device.type for _, tensor in self.tensors}
        if len(devices) > 1 or devices - {"cpu", "cuda"}:
            words = f"{who} got tensors on {' and '.join(sorted(devices))}"
            raise TargetFailure(words, "move them to one device")
        self.is_on_gpu = devices == {"cuda"}

    def addresses(self, types: Sequence[ParameterType]) -> Any:
        found = []
        for (parameter, argument), type_ in zip(self._given, types, strict=True):
            value = _c_value(type_, argument)
            if value is None:
                is_tensor = hasattr(argument, "data_ptr")
                got = f"a tensor of {argument.dtype}" if is_tensor else repr(argument)
                words = f"{self._who}: parameter {parameter.name!r} is {parameter.type}"
                raise TargetFailure(f"{words}, got {got}", _FITS)
            found.append(value)
        array: Any = (POINTER * max(1, len(found)))(*map(ctypes.addressof, found))
        array.values = found
        return array


def _c_value(type_: ParameterType, argument: Any) -> Any:
    if isinstance(type_, int):
        if argument is None:
            return POINTER()
        fits = hasattr(argument, "data_ptr") and type_ in (0, argument.element_size())
        return POINTER(argument.data_ptr()) if fits else None
    number = argument.item() if isinstance(argument, np.generic) else argument
    is_real = type_ in _REAL
    if type_ in (None, HALF) or not isinstance(number, (int, float) if is_real else int):
        return None
    with contextlib.suppress(OverflowError):
        value = type_(number)
        fits = math.isinf(number) or not math.isinf(value.value)
        return value if (fits if is_real else value.value == number) else None
    return None
