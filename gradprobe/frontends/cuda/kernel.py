"""A kernel of a CUDA source under its options, and the C types and values of its parameters."""

from __future__ import annotations

import ctypes
import functools
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ...model.failures import NoKernel, TargetFailure
from .cuda_syntax import Parameter
from .source import Unit

if TYPE_CHECKING:
    from torch import Tensor

Sizes = tuple[int, int, int]
T = TypeVar("T")


@dataclass(frozen=True)
class KernelEntry:
    """One kernel of a unit."""

    unit: Unit
    name: str
    parameters: tuple[Parameter, ...]

    @property
    def file(self) -> Path:
        return self.unit.source.path

    @property
    def line(self) -> int:
        """Where its name stands."""
        return self.unit.source.declared[self.plain_name].line

    @property
    def plain_name(self) -> str:
        """Without the arguments of a template."""
        return self.name.partition("<")[0].strip()

    def check(self, arguments: Sequence[Any]) -> None:
        """Raises TargetFailure where there are more or fewer than it takes."""
        check_count(f"kernel {self.name} of {self.file.name}", self.parameters, arguments)

    def tensors(self, arguments: Sequence[Any]) -> list[tuple[str, Tensor]]:
        """(the parameter's name, the tensor) of each argument that is one."""
        given = zip(self.parameters, arguments, strict=True)
        return [(each.name, argument) for each, argument in given if hasattr(argument, "data_ptr")]


def check_count(who: str, parameters: Sequence[Parameter], arguments: Sequence[Any]) -> None:
    """Raises TargetFailure where there are more or fewer arguments than parameters."""
    if len(arguments) != len(parameters):
        takes = ", ".join(parameter.name or parameter.type for parameter in parameters)
        words = f"{who} takes {len(parameters)} arguments, got {len(arguments)}"
        raise TargetFailure(words, f"it takes: {takes}")


def entry_of(unit: Unit, name: str) -> KernelEntry:
    """A kernel by its name, or one instance of a template: `backward<32, float>`.

    Raises:
        NoKernel: the source has no such kernel.
    """
    plain, source = name.partition("<")[0].strip(), unit.source
    found = source.declared.get(plain)
    if found is not None and found.is_template == ("<" in name):
        return KernelEntry(unit, name, found.parameters)
    way_out = f"it has: {', '.join(source.declared) or 'none'}"
    if found is not None and found.is_template:
        way_out = f'it is a template: name an instance, module["{plain}<...>"]'
    raise NoKernel(f"{source.path.name} has no kernel {name!r}", way_out)


# What every GPU allows.
_MOST_THREADS = 1024


def sizes_of(name: str, *sizes: int | Sequence[int]) -> tuple[Sizes, Sizes]:
    """A grid and a block along x, y and z; those left out are 1.

    Raises:
        TargetFailure: no GPU launches so many.
    """
    found: list[Sizes] = []
    for what, size in zip(("grid", "block"), sizes, strict=True):
        given = (size,) if isinstance(size, int) else tuple(size)
        if not 1 <= len(given) <= 3 or min(given) < 1:
            raise TargetFailure(f"kernel {name}: its {what} must be 1 to 3 numbers above 0, got {given}")
        x, y, z = (*map(int, given), 1, 1)[:3]
        found.append((x, y, z))
    if (threads := math.prod(found[1])) > _MOST_THREADS:
        raise TargetFailure(f"kernel {name} is launched with {threads:,} threads a block; 1,024 fit")
    return found[0], found[1]


def device_of(who: str, tensors: Sequence[Tensor]) -> str:
    """The kind of device that all tensors are on: "cpu" or "cuda".

    Raises:
        TargetFailure: they are on several, or on another.
    """
    devices = {tensor.device.type for tensor in tensors} or {"cpu"}
    if len(devices) > 1 or devices - {"cpu", "cuda"}:
        raise TargetFailure(f"{who} got tensors on {' and '.join(sorted(devices))}", "move them to one device")
    return devices.pop()


_INSTANCES: dict[tuple[object, Unit], tuple[str, ...]] = {}
_LONGEST = 3


def compiled_for(entry: KernelEntry, compiled: Callable[[Unit, tuple[str, ...]], T]) -> T:
    """What a compiler makes of a unit with all instances of its templates so far, to which the kernel may add one."""
    key, unit = (compiled, entry.unit), entry.unit
    instances = _INSTANCES.get(key, ())
    if "<" in entry.name and entry.name not in instances:
        instances = (*instances, entry.name)
    made = compiled(unit, instances)
    _INSTANCES[key] = instances  # only now, so that one that does not compile is not compiled with every other
    return made


def first_errors(found: Iterable[str], printed: str) -> str:
    """The first errors of a compiler, each once; the end of what it printed where there is no error in it."""
    errors = list(dict.fromkeys(found))
    more = f"; and {len(errors) - _LONGEST} more" if len(errors) > _LONGEST else ""
    return "; ".join(errors[:_LONGEST]) + more if errors else printed.strip()[-500:]


def c_values(
    who: str, parameters: Sequence[Parameter], takes: Sequence[Taken | None], arguments: Sequence[Any]
) -> list[Any]:
    """Each argument as a C value.

    Raises:
        TargetFailure: it does not fit the parameter, or that is neither a pointer nor a number.
    """
    found = []
    for parameter, taken, argument in zip(parameters, takes, arguments, strict=True):
        where = f"{who}: parameter {parameter.name!r}"
        if taken is not None and taken.kind == POINTER:
            found.append(_pointer(where, parameter, taken, argument))
        elif taken is not None and (c_type := _NUMBERS.get((taken.kind, taken.bytes))) is not None:
            found.append(_number(where, c_type, is_bool=parameter.type == "bool", argument=argument))
        else:
            words = f"{where} is a {parameter.type}, neither a pointer nor a number"
            raise TargetFailure(words, "call a function of the file's host code that makes it and launches the kernel")
    return found


def addresses_of(values: Sequence[Any]) -> Any:
    """The addresses of C values, as a C array."""
    return (ctypes.c_void_p * max(1, len(values)))(*map(ctypes.addressof, values))


def _number(where: str, c_type: Any, argument: Any, *, is_bool: bool) -> Any:
    number = argument.item() if isinstance(argument, np.generic) else argument
    is_floating, size = c_type in _FLOATS, ctypes.sizeof(c_type)
    if not isinstance(number, (int, float)) or (isinstance(number, float) and not is_floating):
        raise TargetFailure(f"{where} is {'a number' if is_floating else 'a whole number'}, got {argument!r}")
    if is_floating:
        most = int(np.finfo(_FLOATS[c_type]).max)
        fits = number != number or abs(number) == math.inf or abs(number) <= most
    else:
        fits = number in (0, 1) if is_bool else c_type(number).value == number
    if not fits:
        raise TargetFailure(f"{where} has {size} bytes, and {number:,} does not fit")
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


# --- C types by their declarations

POINTER, SIGNED, UNSIGNED, FLOATING, OTHER, _VECTOR = range(6)
STREAM = "cudaStream_t"


class Taken(ctypes.Structure):
    """The type of one parameter of a kernel: gp_parameter of the header."""

    _fields_ = (("kind", ctypes.c_int32), ("bytes", ctypes.c_int32), ("of", ctypes.c_int32))
    kind: int
    bytes: int
    of: int
    """Of a pointer, the bytes of a number that it points to; 0 where that is none."""


_FLOATS: Mapping[Any, Any] = {ctypes.c_float: np.float32, ctypes.c_double: np.float64}
_NUMBERS: Mapping[tuple[int, int], Any] = {
    **{(SIGNED, size): getattr(ctypes, f"c_int{8 * size}") for size in (1, 2, 4, 8)},
    **{(UNSIGNED, size): getattr(ctypes, f"c_uint{8 * size}") for size in (1, 2, 4, 8)},
    **{(FLOATING, ctypes.sizeof(each)): each for each in _FLOATS},
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
    (OTHER, 0): "void",
}
_SCALARS = {name: kind for kind, names in _NAMES.items() for name in names.split()}
# Types by which several elements of a tensor are read at once.
_SINGLE = {"char": 1, "uchar": 1, "short": 2, "ushort": 2, "int": 4, "uint": 4, "float": 4, "double": 8, "longlong": 8}
_VECTORS = {f"{name}{count}": (_VECTOR, size * count) for name, size in _SINGLE.items() for count in (2, 3, 4)}
_VECTORS |= dict.fromkeys(("half2", "__half2", "nv_bfloat162", "__nv_bfloat162"), (_VECTOR, 4))
_DTYPES = {"float": "float32", "double": "float64", "half": "float16", "nv_bfloat16": "bfloat16"}


def type_of(unit: Unit, declared: str) -> Taken | None:
    """What words such as "unsigned long long", "float*" or "real" mean; None where it is neither pointer nor number."""
    kind, size = _size_of(unit, declared.rstrip("*&"))
    if declared.endswith(("*", "&")) or declared == STREAM:
        if declared.count("*") != 1:
            kind, size = OTHER, 8
        return Taken(POINTER, 8, 0 if kind == _VECTOR else size)
    return Taken(OTHER if kind == _VECTOR else kind, size, 0) if kind >= 0 else None


def types_as_written(unit: Unit, parameters: Sequence[Parameter]) -> list[Taken | None]:
    """The types of parameters, from their declarations."""
    return [type_of(unit, parameter.type) for parameter in parameters]


def pointed_to(unit: Unit, declared: str) -> str:
    """torch's name of the dtype that a pointer's elements have; "" where it does not tell."""
    return _DTYPES.get(_meant(unit, declared.rstrip("*")).removeprefix("__"), "")


def number_bytes(unit: Unit, declared: str) -> int:
    """The bytes of a number or vector by its type; 0 where that is neither."""
    return _size_of(unit, declared)[1]


@functools.lru_cache(maxsize=64)
def _meanings(unit: Unit) -> Mapping[str, str]:
    """The types behind macros and aliases of the source. Options of the compiler override macros."""
    text = unit.source.everything
    found = dict(re.findall(r"^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+([\w ]+?)[ \t]*$", text, re.MULTILINE))
    found |= dict(re.findall(r"\busing\s+(\w+)\s*=\s*([\w ]+?)\s*;", text))
    found |= {name: kind for kind, name in re.findall(r"\btypedef\s+([\w ]+?)\s+(\w+)\s*;", text)}
    return found | dict(unit.defines)


def _meant(unit: Unit, declared: str) -> str:
    known = _meanings(unit)
    for _ in range(8):  # an alias of an alias
        declared = " ".join(known.get(word, word) for word in declared.replace("std::", "").split())
    return declared


def _size_of(unit: Unit, declared: str) -> tuple[int, int]:
    """(kind, bytes) of a number or vector; (-1, 0) of anything else."""
    words = _meant(unit, declared).split()
    left = sorted(word for word in words if word not in ("const", "volatile", "signed", "unsigned"))
    plain = " ".join(left[1:] if len(left) > 1 and left[0] == "int" else left).replace("long long", "long") or "int"
    kind, size = _SCALARS.get(plain, _VECTORS.get(plain, (-1, 0)))
    return (UNSIGNED, size) if kind >= 0 and "unsigned" in words else (kind, size)
