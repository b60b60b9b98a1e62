"""A compiled library: its kernels with their parameters, its arrays, and the memory that a launch of one may touch."""

from __future__ import annotations

import ctypes
import functools
import linecache
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ....inputs.memory import Array, Unwritten, elements_of, entries_of
from ....model.failures import TargetFailure
from ....source.text import SourceLine
from ..c_types import Taken, kind_and_bytes, structure
from ..source import CudaSource
from .build import CALLERS, HERE, MOST_SHARED, ROOM, built, readelf

if TYPE_CHECKING:
    from torch import Tensor

_Parameters = structure((ctypes.c_int32, "kind bytes of")) * 256
# Symbols that are no array of the source: in the library, and in its shared memory.
_OF_THE_COMPILER = ("gradprobe_runtime::", "completed.", "_", "DW.ref.", "guard variable", "typeinfo")
_SYMBOL = re.compile(r"^ *\d+: +([0-9a-f]+) +(0x[0-9a-f]+|\d+) +(TLS|OBJECT) +\w+ +\w+ +\d+ +(.+)$", re.MULTILINE)
_BESIDE_ARRAYS = (ROOM, "gradprobe_runtime::", "guard variable", "TLS ")


@dataclass(frozen=True)
class Named:
    """An array, as findings name it."""

    name: str
    """"" for the compiler's own data, such as the guard of a shared array's constructor."""
    is_shared: bool = False
    tensor: Tensor | None = None
    start: int = 0
    """The address of a shared or global array; in a library, from its beginning or that of its shared memory."""
    bytes: int = 0
    element: int = 0
    """The bytes of one of its elements; 0 where they are not known."""

    @property
    def end(self) -> int:
        """The address behind its last element."""
        return self.start + self.bytes

    def index(self, address: int, accessed: int) -> str:
        """The element at an address, in brackets; "" of what has one alone."""
        unit = self.element or max(1, accessed)
        number = (address - self.start) // unit
        if self.tensor is not None:
            return str([*(elements_of(self.tensor).index(number) or ())])
        return f"[{number}]" if self.bytes > unit else ""


class Library:
    """A loaded library."""

    def __init__(self, file: Path, kernels: tuple[str, ...]) -> None:
        try:
            self.loaded = ctypes.CDLL(str(file))
        except OSError as error:
            raise TargetFailure(f"the library of a CUDA source cannot be loaded: {error}") from error
        for name in ("gp_shared_base", "gp_shared_bytes", "gp_library_base", "gp_library_bytes"):
            getattr(self.loaded, name).restype = ctypes.c_uint64
        self.file, self._kernels = file, kernels
        self.base: int = self.loaded.gp_library_base()
        self.arrays = tuple(_arrays_in(file))
        self._lines: dict[int, tuple[SourceLine, ...]] = {}

    def kernel(self, name: str) -> int:
        """The address of the function that calls a kernel."""
        caller = getattr(self.loaded, f"gp_kernel_{self._kernels.index(name)}")
        return ctypes.cast(caller, ctypes.c_void_p).value or 0

    def takes(self, kernel: str) -> tuple[Taken, ...]:
        """The types of a kernel's parameters."""
        out = _Parameters()
        count = getattr(self.loaded, f"gp_describe_{self._kernels.index(kernel)}")(out)
        return tuple(Taken(each.kind, each.bytes, each.of) for each in out[:count])

    def lines(self, addresses: Sequence[int]) -> dict[int, tuple[SourceLine, ...]]:
        """By return address, its line and those of the functions that this one is inlined in, by addr2line."""
        new = [address for address in dict.fromkeys(addresses) if address not in self._lines]
        # A return address is the address of the instruction after the call.
        words = ["addr2line", "--addresses", "--inlines", "--exe", str(self.file), *(hex(at - 1) for at in new)]
        printed = subprocess.run(words, capture_output=True, text=True, check=True).stdout if new else ""
        for part in re.split("^0x", printed, flags=re.MULTILINE)[1:]:
            address, *places = part.splitlines()
            found = []
            for file, _, number in (place.partition(" (")[0].rpartition(":") for place in places):
                is_own = Path(file).name == CALLERS or Path(file).resolve().is_relative_to(HERE)
                if file and number.isdigit() and not is_own:
                    linecache.checkcache(file)  # it may have changed since another library was compiled from it
                    found.append(SourceLine(file, int(number), linecache.getline(file, int(number)).strip()))
            self._lines[int(address, 16) + 1] = tuple(found)
        return {address: self._lines.get(address, ()) for address in addresses}


@functools.cache
def library_of(source: CudaSource, instance: str = "", *, has_host: bool = False) -> Library:
    """The library of a source's kernels, of one instance of a template where one is named, and of its host code."""
    kernels = (*source.kernels, *filter(None, [instance]))
    return Library(built(source, kernels, has_host=has_host), kernels)


def _arrays_in(file: Path) -> list[Named]:
    """The arrays and variables in memory that the source defines, by readelf."""
    found: dict[tuple[int, bool], Named] = {}
    for match in _SYMBOL.finditer(readelf(file, "--demangle")):
        value, size, is_shared, name = int(match[1], 16), int(match[2], 0), match[3] == "TLS", match[4]
        if not size or (not is_shared and name.startswith(_OF_THE_COMPILER)):
            continue
        short = re.sub(r"(\[abi:\w+\]|\.\d+)$", "", name.rpartition("::")[2])  # `kernel<4>(float*, int)::tile`: tile
        called = "" if name.startswith(_BESIDE_ARRAYS) else short
        if called or (value, is_shared) not in found:
            found[value, is_shared] = Named(called, is_shared, None, value, size)
    return list(found.values())


# --- What a launch may touch


CRegion = structure(
    (ctypes.c_uint64, "base bytes"), (ctypes.c_void_p, "owners unwritten"), (ctypes.c_int32, "granule first is_shared")
)


@dataclass
class Regions:
    """The regions of one launch, and the arrays in them by number, from 1."""

    all: list[Any] = field(default_factory=list)
    arrays: list[Named] = field(default_factory=list)
    _kept: list[Array | None] = field(default_factory=list)

    def add_tensors(self, tensors: Sequence[tuple[str, Tensor]], unwritten: Unwritten) -> None:
        """Adds the storages of tensors; a map names the owner of each granule that not all are one tensor's."""
        storages: dict[int, list[tuple[str, Tensor]]] = {}
        for name, tensor in tensors:
            if tensor.numel():
                storages.setdefault(tensor.untyped_storage().data_ptr(), []).append((name, tensor))
        for base, views in storages.items():
            first = len(self.arrays) + 1
            for name, tensor in views:
                unit, elements = tensor.element_size(), elements_of(tensor)
                self.arrays.append(Named(name, False, tensor, tensor.data_ptr(), elements.span * unit, unit))
            only, size = views[0][1], views[0][1].untyped_storage().nbytes()
            granule = min(tensor.element_size() for _, tensor in views)
            owners, marks = None, unwritten.by_granule(base, granule)
            if len(views) > 1 or not only.is_contiguous() or size != only.numel() * only.element_size():
                owners = np.zeros(size // granule, np.uint8)
                for number, (_, tensor) in enumerate(views, first):
                    parts = tensor.element_size() // granule
                    by_element = owners[: len(owners) // parts * parts].reshape(-1, parts)
                    for part in range(parts):
                        entries_of(tensor, by_element[:, part])[...] = number
            addresses = [None if each is None else each.ctypes.data for each in (owners, marks)]
            self.all.append(CRegion(base, size // granule * granule, *addresses, granule, first, 0))
            self._kept += [owners, marks]

    def add_arrays(self, library: Library, source: CudaSource, kernel: str, dynamic_bytes: int) -> None:
        """Adds the arrays of the source; `extern __shared__` ones lie in the dynamic shared memory of the launch."""
        granule, loaded = source.granule, library.loaded
        shared_base = loaded.gp_shared_base()  # which each thread of this process has for itself
        for array in library.arrays:
            base = (shared_base if array.is_shared else library.base) + array.start
            # All dynamic ones are one, and no other is so large; findings call it as the kernel does.
            is_dynamic = array.is_shared and array.name and array.bytes == MOST_SHARED
            name = source.dynamic_array_of(kernel) if is_dynamic else array.name
            size = dynamic_bytes if is_dynamic else array.bytes
            element = kind_and_bytes(source, source.shared_types.get(name, "void"))[1]
            number = len(self.arrays) + 1 if array.name else 0
            if number:
                self.arrays.append(Named(name, array.is_shared, None, base, size, element))
            if size:
                self.all.append(CRegion(base, size, None, None, granule, number, array.is_shared))
        # The rest of the shared memory. An access there is a fault, and does no harm.
        self.all.append(CRegion(shared_base, loaded.gp_shared_bytes(), None, None, granule, -1, 0))
        # Constants, and the compiler's own data. They are no array, and may be read.
        self.all.append(CRegion(library.base, loaded.gp_library_bytes(), None, None, 1, 0, 0))
