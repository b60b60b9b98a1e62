"""A compiled library: its kernels with what they take, its arrays, and its memory."""

from __future__ import annotations

import ctypes
import functools
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...failures import TargetFailure
from ..unit import Entry, Unit
from .build import kernel_symbol, library_of, names_of

_MOST_PARAMETERS = 256
POINTER, SIGNED, UNSIGNED, FLOATING, OTHER = range(5)


class Taken(ctypes.Structure):
    """What a kernel takes at one place: gp_parameter of the header."""

    _fields_ = (("kind", ctypes.c_int32), ("bytes", ctypes.c_int32), ("of", ctypes.c_int32))
    kind: int
    bytes: int
    of: int


@dataclass(frozen=True)
class Array:
    """A shared or global array of the source."""

    name: str
    offset: int
    """From where the library's shared memory, or the library itself, begins."""
    bytes: int
    is_shared: bool


class Library:
    """One of them, loaded."""

    def __init__(self, file: Path, kernels: tuple[str, ...]) -> None:
        self.file = file
        self._loaded = ctypes.CDLL(str(file))
        for name in ("gp_shared_base", "gp_library_base", "gp_library_bytes"):
            getattr(self._loaded, name).restype = ctypes.c_uint64
        self._number = {name: number for number, name in enumerate(kernels)}
        self.base: int = self._loaded.gp_library_base()
        self.bytes: int = self._loaded.gp_library_bytes()
        self.arrays = tuple(_arrays_in(file))

    @property
    def shared_base(self) -> int:
        """In the thread that asks."""
        return self._loaded.gp_shared_base()  # type: ignore[no-any-return]

    def address_of(self, kernel: str) -> int:
        function = getattr(self._loaded, kernel_symbol(self._number[kernel]))
        return ctypes.cast(function, ctypes.c_void_p).value or 0

    @functools.cache  # noqa: B019 - a library is never unloaded
    def takes(self, kernel: str) -> tuple[Taken, ...]:
        out = (Taken * _MOST_PARAMETERS)()
        count = getattr(self._loaded, f"gp_describe_{self._number[kernel]}")(out)
        return tuple(out[:count])

    def run(self, launch: ctypes.Structure) -> int:
        return self._loaded.gp_run(ctypes.byref(launch))  # type: ignore[no-any-return]


_INSTANCES: dict[Unit, tuple[str, ...]] = {}


def library_for(entry: Entry) -> Library:
    """The library that holds a kernel; compiled again where it is an instance of a template not asked for before."""
    unit, known = entry.unit, _INSTANCES.get(entry.unit, ())
    if "<" in entry.name and entry.name not in known:
        known = _INSTANCES[unit] = (*known, entry.name)
    return _library(unit, known)


@functools.cache
def _library(unit: Unit, instances: tuple[str, ...]) -> Library:
    return Library(library_of(unit, instances), names_of(unit, instances))


def _arrays_in(file: Path) -> list[Array]:
    """The arrays and variables that the source defines outside of registers, by readelf."""
    words = ["readelf", "--symbols", "--wide", "--demangle", str(file)]
    try:
        ran = subprocess.run(words, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise TargetFailure(f"readelf (of binutils, as g++ is) cannot read {file}: {error}") from error
    pattern = re.compile(r"^\s*\d+:\s+([0-9a-f]+)\s+(0x[0-9a-f]+|\d+)\s+(TLS|OBJECT)\s+\w+\s+\w+\s+\d+\s+(.+)$")
    found = {}
    for line in ran.stdout.splitlines():
        match = pattern.match(line)
        if match and not _is_own(match.group(4)) and int(match.group(2), 0):
            value, size, kind, name = match.groups()
            array = Array(_short(name), int(value, 16), int(size, 0), kind == "TLS")
            found[array.offset, array.is_shared] = array
    return list(found.values())


def _is_own(name: str) -> bool:
    return name.startswith(("(anonymous namespace)::", "completed.", "_", "DW.ref.", "guard variable", "typeinfo"))


def _short(name: str) -> str:
    """`kernel<4>(float*, int)::tile` -> tile."""
    return re.sub(r"(\[abi:\w+\]|\.\d+)$", "", name.rpartition("::")[2])


def as_number(taken: Taken, value: Any, kernel: str, parameter: str) -> Any:
    """A number as the C type that a parameter has.

    Raises:
        TargetFailure: it is none, or does not fit.
    """
    kinds = {
        (SIGNED, 1): ctypes.c_int8, (SIGNED, 2): ctypes.c_int16, (SIGNED, 4): ctypes.c_int32,
        (SIGNED, 8): ctypes.c_int64, (UNSIGNED, 1): ctypes.c_uint8, (UNSIGNED, 2): ctypes.c_uint16,
        (UNSIGNED, 4): ctypes.c_uint32, (UNSIGNED, 8): ctypes.c_uint64, (FLOATING, 4): ctypes.c_float,
        (FLOATING, 8): ctypes.c_double,
    }  # fmt: skip
    c_type: Any = kinds.get((taken.kind, taken.bytes))
    if c_type is None:
        raise TargetFailure(
            f"kernel {kernel}: parameter {parameter!r} is neither a pointer nor a number", "pass its parts one by one"
        )
    wants = "a number" if taken.kind == FLOATING else "a whole number"
    if not isinstance(value, (int, float)) or (isinstance(value, float) and taken.kind != FLOATING):
        raise TargetFailure(f"kernel {kernel}: parameter {parameter!r} is {wants}, got {value!r}")
    made = c_type(value)
    if taken.kind != FLOATING and made.value != value:
        raise TargetFailure(f"kernel {kernel}: {value:,} does not fit parameter {parameter!r} of {taken.bytes} bytes")
    return made
