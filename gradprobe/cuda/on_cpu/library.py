"""A compiled library: its kernels with their parameters, its arrays, and its memory."""

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
# Symbols that are no array of the source: in the library, and in its shared memory.
_OF_THE_COMPILER = ("gradprobe_runtime::", "completed.", "_", "DW.ref.", "guard variable", "typeinfo")
_BESIDE_ARRAYS = (ROOM, "gradprobe_runtime::", "guard variable", "TLS ")


@dataclass(frozen=True)
class Array:
    """A shared or global array of the source."""

    name: str
    """"" for the compiler's own data, such as the guard of a shared array's constructor."""
    offset: int
    """From the beginning of the library's shared memory, or of the library itself."""
    bytes: int
    is_shared: bool


class Library:
    """A loaded library."""

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
        """The address of the shared memory, which each thread of this process has for itself."""
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
    """The library that holds a kernel. A new instance of a template makes it compile the library again."""
    unit, known = entry.unit, _INSTANCES.get(entry.unit, ())
    if "<" in entry.name and entry.name not in known:
        known = (*known, entry.name)
    library = _library(unit, known)
    _INSTANCES[unit] = known  # only now, so that one that does not compile is not compiled with every other
    return library


@functools.cache
def _library(unit: Unit, instances: tuple[str, ...]) -> Library:
    return Library(library_of(unit, instances), names_of(unit, instances))


def _arrays_in(file: Path) -> list[Array]:
    """The arrays and variables in memory that the source defines, by readelf."""
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
        if is_shared or not name.startswith(_OF_THE_COMPILER):
            short = re.sub(
                r"(\[abi:\w+\]|\.\d+)$", "", name.rpartition("::")[2]
            )  # `kernel<4>(float*, int)::tile`: tile
            called = "" if name.startswith(_BESIDE_ARRAYS) else short
            if called or (int(value, 16), is_shared) not in found:
                found[int(value, 16), is_shared] = Array(called, int(value, 16), int(size, 0), is_shared)
    return list(found.values())
