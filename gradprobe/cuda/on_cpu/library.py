"""A compiled library: its kernels with what they take, its arrays, and its memory."""

from __future__ import annotations

import ctypes
import functools
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from ...failures import TargetFailure
from ..arguments import Taken
from ..unit import Entry, Unit
from .build import ROOM, kernel_symbol, library_of, names_of

_MOST_PARAMETERS = 256


@dataclass(frozen=True)
class Array:
    """A shared or global array of the source."""

    name: str
    """"" of what the compiler keeps beside them, such as whether a shared array was constructed."""
    offset: int
    """From where the library's shared memory, or the library itself, begins."""
    bytes: int
    is_shared: bool


class Library:
    """One of them, loaded."""

    def __init__(self, file: Path, kernels: tuple[str, ...]) -> None:
        self.file = file
        try:
            self._loaded = ctypes.CDLL(str(file))
        except OSError as error:
            raise TargetFailure(f"the library of a CUDA source cannot be loaded: {error}") from error
        for name in ("gp_shared_base", "gp_shared_bytes", "gp_library_base", "gp_library_bytes"):
            getattr(self._loaded, name).restype = ctypes.c_uint64
        self._number = {name: number for number, name in enumerate(kernels)}
        self.base: int = self._loaded.gp_library_base()
        self.bytes: int = self._loaded.gp_library_bytes()
        self.shared_bytes: int = self._loaded.gp_shared_bytes()
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
        known = (*known, entry.name)
    library = _library(unit, known)
    _INSTANCES[unit] = known  # one that does not compile is not asked for again
    return library


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
        if match is None or not int(match.group(2), 0):
            continue
        value, size, kind, name = match.groups()
        is_shared = kind == "TLS"
        if is_shared or not _is_own(name):
            called = "" if _is_kept_beside(name) else _short(name)
            if called or (int(value, 16), is_shared) not in found:
                found[int(value, 16), is_shared] = Array(called, int(value, 16), int(size, 0), is_shared)
    return list(found.values())


def _is_own(name: str) -> bool:
    return name.startswith(("gradprobe_runtime::", "completed.", "_", "DW.ref.", "guard variable", "typeinfo"))


def _is_kept_beside(name: str) -> bool:
    return name.startswith((ROOM, "gradprobe_runtime::", "guard variable", "TLS "))


def _short(name: str) -> str:
    """`kernel<4>(float*, int)::tile` -> tile."""
    return re.sub(r"(\[abi:\w+\]|\.\d+)$", "", name.rpartition("::")[2])
