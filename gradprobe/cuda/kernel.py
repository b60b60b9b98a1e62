"""A kernel of a CUDA source under its options, and the C values of its parameters."""

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

from ..model.failures import NoKernel, TargetFailure
from .source import CudaSource, Parameter

if TYPE_CHECKING:
    from torch import Tensor

Sizes = tuple[int, int, int]
T = TypeVar("T")


@dataclass(frozen=True)
class Unit:
    """A source and how it is compiled."""

    source: CudaSource
    defines: tuple[tuple[str, str], ...] = ()
    include: tuple[str, ...] = ()
    """Folders."""

    def entry(self, name: str) -> KernelEntry:
        """A kernel by its name, or one instance of a template: `backward<32, float>`.

        Raises:
            NoKernel: the source has no such kernel.
        """
        plain, source = name.partition("<")[0].strip(), self.source
        known = source.templates if "<" in name else source.kernels
        if plain not in known:
            way_out = f"it has: {', '.join((*source.kernels, *source.templates)) or 'none'}"
            if plain in source.templates:
                way_out = f'it is a template: name an instance, module["{plain}<...>"]'
            raise NoKernel(f"{source.path.name} has no kernel {name!r}", way_out)
        return KernelEntry(self, name, known[plain])


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
        return self.unit.source.line_of(self.plain_name)

    @property
    def plain_name(self) -> str:
        """Without the arguments of a template."""
        return self.name.partition("<")[0].strip()

    def check(self, arguments: Sequence[Any]) -> None:
        """Raises TargetFailure where there are more or fewer than it takes."""
        if len(arguments) != len(self.parameters):
            takes = ", ".join(parameter.name or parameter.type for parameter in self.parameters)
            raise TargetFailure(
                f"kernel {self.name} of {self.file.name} takes {len(self.parameters)} arguments, got {len(arguments)}",
                f"it takes: {takes}",
            )

    def tensors(self, arguments: Sequence[Any]) -> list[tuple[str, Tensor]]:
        """(the parameter's name, the tensor) of each argument that is one."""
        import torch

        given = zip(self.parameters, arguments, strict=True)
        return [(each.name, argument) for each, argument in given if isinstance(argument, torch.Tensor)]


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


POINTER, SIGNED, UNSIGNED, FLOATING, OTHER = range(5)
_VECTOR = 5


class Taken(ctypes.Structure):
    """The type of one parameter of a kernel: gp_parameter of the header."""

    _fields_ = (("kind", ctypes.c_int32), ("bytes", ctypes.c_int32), ("of", ctypes.c_int32))
    kind: int
    bytes: int
    of: int


_C_TYPES: Mapping[tuple[int, int], Any] = {
    **{(SIGNED, size): getattr(ctypes, f"c_int{8 * size}") for size in (1, 2, 4, 8)},
    **{(UNSIGNED, size): getattr(ctypes, f"c_uint{8 * size}") for size in (1, 2, 4, 8)},
    **{(FLOATING, 4): ctypes.c_float, (FLOATING, 8): ctypes.c_double},
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


def taken_as_written(entry: KernelEntry) -> tuple[Taken, ...]:
    """The types of a kernel's parameters, from its declaration.

    Raises:
        TargetFailure: a parameter that is no pointer has a type that is not known.
    """
    meant, made = _meanings(entry.unit), []
    for parameter in entry.parameters:
        words = parameter.type
        if words.endswith(("*", "&")):
            known = _known(words.rstrip("*&"), meant) if words.count("*") == 1 else (OTHER, 8)
            made.append(Taken(POINTER, 8, known[1] if known and known[0] != _VECTOR else 0))
        elif (known := _known(words, meant)) is not None:
            made.append(Taken(min(known[0], OTHER), known[1], 0))
        else:
            raise TargetFailure(f"kernel {entry.name}: the type {words!r} of parameter {parameter.name!r} is not known")
    return tuple(made)


def c_values(entry: KernelEntry, takes: Sequence[Taken], arguments: Sequence[Any]) -> list[Any]:
    """Each argument as a C value.

    Raises:
        TargetFailure: it does not fit the parameter.
    """
    made, given = [], zip(entry.parameters, takes, arguments, strict=True)
    for parameter, taken, argument in given:
        c_value = _pointer if taken.kind == POINTER else _number
        made.append(c_value(f"kernel {entry.name}: parameter {parameter.name!r}", parameter, taken, argument))
    return made


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


def _number(where: str, parameter: Parameter, taken: Taken, value: Any) -> Any:
    c_type, is_floating = _C_TYPES.get((taken.kind, taken.bytes)), taken.kind == FLOATING
    if c_type is None:
        raise TargetFailure(f"{where} is neither a pointer nor a number", "pass its parts one by one")
    number = value.item() if isinstance(value, np.generic) else value
    if not isinstance(number, (int, float)) or (isinstance(number, float) and not is_floating):
        raise TargetFailure(f"{where} is {'a number' if is_floating else 'a whole number'}, got {value!r}")
    if is_floating:
        most = int(np.finfo(np.float32 if taken.bytes == 4 else np.float64).max)
        fits = number != number or abs(number) == math.inf or abs(number) <= most
    else:
        fits = number in (0, 1) if parameter.type == "bool" else c_type(number).value == number
    if not fits:
        raise TargetFailure(f"{where} has {taken.bytes} bytes, and {number:,} does not fit")
    return c_type(number)


def element_bytes(entry: KernelEntry, array: str) -> int:
    """The bytes of an element of a shared array, by its declaration; 0 where that does not tell."""
    words = entry.unit.source.shared_types.get(array, "")
    known = _known(words, _meanings(entry.unit)) if words else None
    return known[1] if known else 0


@functools.lru_cache(maxsize=64)
def _meanings(unit: Unit) -> Mapping[str, str]:
    """The types behind macros and aliases of the source. Options of the compiler override macros."""
    text = unit.source.everything
    found = dict(re.findall(r"^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+([\w ]+?)[ \t]*$", text, re.MULTILINE))
    found |= dict(re.findall(r"\busing\s+(\w+)\s*=\s*([\w ]+?)\s*;", text))
    found |= {name: kind for kind, name in re.findall(r"\btypedef\s+([\w ]+?)\s+(\w+)\s*;", text)}
    return found | dict(unit.defines)


def _known(words: str, meant: Mapping[str, str]) -> tuple[int, int] | None:
    """(kind, bytes) of a type such as "unsigned long long" or "scalar_t"."""
    for _ in range(8):  # an alias of an alias
        words = " ".join(meant.get(word, word) for word in words.replace("std::", "").split())
    left = sorted(word for word in words.split() if word not in ("const", "volatile", "signed", "unsigned"))
    plain = " ".join(left[1:] if len(left) > 1 and left[0] == "int" else left).replace("long long", "long") or "int"
    found = _SCALARS.get(plain, _VECTORS.get(plain))
    return (UNSIGNED, found[1]) if found and "unsigned" in words.split() else found
