"""A kernel of a CUDA source under its options, and the C values of its parameters."""

from __future__ import annotations

import ctypes
import functools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..model.failures import TargetFailure
from .source import CudaSource, Parameter

if TYPE_CHECKING:
    from torch import Tensor

Sizes = tuple[int, int, int]


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
            TargetFailure: the source has no such kernel.
        """
        plain = name.partition("<")[0].strip()
        known = self.source.templates if "<" in name else self.source.kernels
        if plain not in known:
            raise TargetFailure(f"{self.source.path.name} has no kernel {name!r}", self._way_out(plain))
        return KernelEntry(self, name, known[plain])

    def _way_out(self, name: str) -> str:
        if name in self.source.templates:
            return f'it is a template: name an instance, module["{name}<...>"]'
        return f"it has: {', '.join((*self.source.kernels, *self.source.templates)) or 'none'}"


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

        return [
            (parameter.name, argument)
            for parameter, argument in zip(self.parameters, arguments, strict=True)
            if isinstance(argument, torch.Tensor)
        ]


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
    meant = _meanings(entry.unit)
    return tuple(_taken(parameter, meant, entry) for parameter in entry.parameters)


def c_values(entry: KernelEntry, takes: Sequence[Taken], arguments: Sequence[Any]) -> list[Any]:
    """Each argument as a C value.

    Raises:
        TargetFailure: it does not fit the parameter.
    """
    given = zip(entry.parameters, takes, arguments, strict=True)
    return [
        (_pointer if taken.kind == POINTER else _number)(entry, parameter, taken, argument)
        for parameter, taken, argument in given
    ]


def _pointer(entry: KernelEntry, parameter: Parameter, taken: Taken, argument: Any) -> Any:
    import torch

    if argument is not None and not isinstance(argument, torch.Tensor):
        raise TargetFailure(
            f"kernel {entry.name}: parameter {parameter.name!r} is a pointer, got {argument!r}",
            "pass a tensor, or None for a null pointer",
        )
    if argument is not None and taken.of not in (0, argument.element_size()):
        raise TargetFailure(
            f"kernel {entry.name}: parameter {parameter.name!r} is {parameter.type}, of {taken.of} bytes an "
            f"element, got {str(argument.dtype).removeprefix('torch.')}"
        )
    return ctypes.c_void_p(0 if argument is None else argument.data_ptr())


def _number(entry: KernelEntry, parameter: Parameter, taken: Taken, value: Any) -> Any:
    c_type = _C_TYPES.get((taken.kind, taken.bytes))
    where = f"kernel {entry.name}: parameter {parameter.name!r}"
    if c_type is None:
        raise TargetFailure(f"{where} is neither a pointer nor a number", "pass its parts one by one")
    number = value.item() if isinstance(value, np.generic) else value
    wants = "a number" if taken.kind == FLOATING else "a whole number"
    if not isinstance(number, (int, float)) or (isinstance(number, float) and taken.kind != FLOATING):
        raise TargetFailure(f"{where} is {wants}, got {value!r}")
    if not _fits(c_type, taken, parameter, number):
        raise TargetFailure(f"{where} has {taken.bytes} bytes, and {number:,} does not fit")
    return c_type(number)


def _fits(c_type: Any, taken: Taken, parameter: Parameter, number: float) -> bool:
    if taken.kind == FLOATING:
        most = np.finfo(np.float32 if taken.bytes == 4 else np.float64).max
        return number != number or abs(number) == math.inf or abs(number) <= int(most)
    return number in (0, 1) if parameter.type == "bool" else c_type(number).value == number


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


def _taken(parameter: Parameter, meant: Mapping[str, str], entry: KernelEntry) -> Taken:
    words = parameter.type
    if words.endswith(("*", "&")):
        known = _known(words.rstrip("*&"), meant) if words.count("*") == 1 else (OTHER, 8)
        return Taken(POINTER, 8, known[1] if known and known[0] != _VECTOR else 0)
    known = _known(words, meant)
    if known is None:
        raise TargetFailure(f"kernel {entry.name}: the type {words!r} of parameter {parameter.name!r} is not known")
    return Taken(min(known[0], OTHER), known[1], 0)


def _known(words: str, meant: Mapping[str, str]) -> tuple[int, int] | None:
    """(kind, bytes) of a type such as "unsigned long long" or "scalar_t"."""
    for _ in range(8):  # an alias of an alias
        words = " ".join(meant.get(word, word) for word in words.replace("std::", "").split())
    left = sorted(word for word in words.split() if word not in ("const", "volatile", "signed", "unsigned"))
    plain = " ".join(left[1:] if len(left) > 1 and left[0] == "int" else left).replace("long long", "long") or "int"
    found = _SCALARS.get(plain, _VECTORS.get(plain))
    return (UNSIGNED, found[1]) if found and "unsigned" in words.split() else found
