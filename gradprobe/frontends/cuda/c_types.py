"""The C types of kernels' parameters, numbers and pointers, by their declarations."""

from __future__ import annotations

import ctypes
import functools
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .source import Unit

POINTER, SIGNED, UNSIGNED, FLOATING, OTHER = range(5)
_VECTOR = 5
STREAM = "cudaStream_t"


class Taken(ctypes.Structure):
    """The type of one parameter of a kernel: gp_parameter of the header."""

    _fields_ = (("kind", ctypes.c_int32), ("bytes", ctypes.c_int32), ("of", ctypes.c_int32))
    kind: int
    bytes: int
    of: int
    """Of a pointer, the bytes of a number that it points to; 0 where that is none."""


C_NUMBERS: Mapping[tuple[int, int], Any] = {
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


def type_of(unit: Unit, declared: str) -> Taken | None:
    """What words such as "unsigned long long", "float*" or "real" mean; None where it is neither pointer nor number."""
    if declared.endswith(("*", "&")) or declared == STREAM:
        of = _number(declared.rstrip("*&"), meanings(unit)) if declared.count("*") == 1 else (OTHER, 8)
        return Taken(POINTER, 8, of[1] if of and of[0] != _VECTOR else 0)
    number = _number(declared, meanings(unit))
    return Taken(OTHER if number[0] == _VECTOR else number[0], number[1], 0) if number else None


_DTYPES = {"float": "float32", "double": "float64", "half": "float16", "nv_bfloat16": "bfloat16"}


def pointed_to(unit: Unit, declared: str) -> str:
    """torch's name of the dtype that a pointer's elements have; "" where it does not tell."""
    return _DTYPES.get(_meant(declared.rstrip("*"), meanings(unit)).removeprefix("__"), "")


def number_bytes(unit: Unit, declared: str) -> int:
    """The bytes of a number or vector by its type; 0 where that is neither."""
    known = _number(declared, meanings(unit))
    return known[1] if known else 0


@functools.lru_cache(maxsize=64)
def meanings(unit: Unit) -> Mapping[str, str]:
    """The types behind macros and aliases of the source. Options of the compiler override macros."""
    text = unit.source.everything
    found = dict(re.findall(r"^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+([\w ]+?)[ \t]*$", text, re.MULTILINE))
    found |= dict(re.findall(r"\busing\s+(\w+)\s*=\s*([\w ]+?)\s*;", text))
    found |= {name: kind for kind, name in re.findall(r"\btypedef\s+([\w ]+?)\s+(\w+)\s*;", text)}
    return found | dict(unit.defines)


def _meant(text: str, meant: Mapping[str, str]) -> str:
    for _ in range(8):  # an alias of an alias
        text = " ".join(meant.get(word, word) for word in text.replace("std::", "").split())
    return text


def _number(declared: str, meant: Mapping[str, str]) -> tuple[int, int] | None:
    """(kind, bytes) of a number or vector."""
    declared = _meant(declared, meant)
    left = sorted(word for word in declared.split() if word not in ("const", "volatile", "signed", "unsigned"))
    plain = " ".join(left[1:] if len(left) > 1 and left[0] == "int" else left).replace("long long", "long") or "int"
    found = _SCALARS.get(plain, _VECTORS.get(plain))
    return (UNSIGNED, found[1]) if found and "unsigned" in declared.split() else found
