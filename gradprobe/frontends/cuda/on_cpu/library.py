"""A compiled library: its kernels with their parameters, its arrays, and its memory."""

from __future__ import annotations

import ctypes
import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ....inputs.memory import Unwritten, entries_of
from ....model.failures import TargetFailure
from ..kernel import KernelEntry, Taken, number_bytes
from ..source import Unit
from .build import MOST_SHARED, ROOM, built, kernel_symbol, names_of, readelf

if TYPE_CHECKING:
    from torch import Tensor

_MOST_PARAMETERS = 256
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
    def span(self) -> tuple[int, int]:
        """The addresses of its first element and behind its last."""
        return (self.start, self.start + self.bytes) if self.tensor is None else _span(self.tensor)

    def element_or(self, accessed: int) -> int:
        """The bytes of an element, or of an access where they are not known."""
        return self.tensor.element_size() if self.tensor is not None else self.element or max(1, accessed)

    def index(self, address: int, accessed: int) -> str:
        """The element at an address, in brackets; "" of what has one alone."""
        unit, tensor = self.element_or(accessed), self.tensor
        if tensor is None:
            return f"[{(address - self.start) // unit}]" if self.bytes > unit else ""
        left, index = (address - tensor.data_ptr()) // unit, [0] * tensor.dim()
        for axis in sorted(range(tensor.dim()), key=tensor.stride, reverse=True):
            step = tensor.stride(axis)
            if step and tensor.shape[axis] > 1:
                index[axis] = min(left // step, tensor.shape[axis] - 1)
                left -= index[axis] * step
        return f"[{', '.join(map(str, index))}]"


class Library:
    """A loaded library."""

    def __init__(self, file: Path, kernels: tuple[str, ...]) -> None:
        self.file = file
        try:
            self.loaded = ctypes.CDLL(str(file))
        except OSError as error:
            raise TargetFailure(f"the library of a CUDA source cannot be loaded: {error}") from error
        for name in ("gp_shared_base", "gp_shared_bytes", "gp_library_base", "gp_library_bytes"):
            getattr(self.loaded, name).restype = ctypes.c_uint64
        self._number = {name: number for number, name in enumerate(kernels)}
        self.base: int = self.loaded.gp_library_base()
        self.bytes: int = self.loaded.gp_library_bytes()
        self.shared_bytes: int = self.loaded.gp_shared_bytes()
        self.arrays = tuple(_arrays_in(file))

    @property
    def shared_base(self) -> int:
        """The address of the shared memory, which each thread of this process has for itself."""
        return self.loaded.gp_shared_base()  # type: ignore[no-any-return]

    def kernel(self, name: str) -> int:
        """The address of the function that calls a kernel."""
        called = getattr(self.loaded, kernel_symbol(self._number[name]))
        return ctypes.cast(called, ctypes.c_void_p).value or 0

    @functools.cache  # noqa: B019 - a library is never unloaded
    def takes(self, kernel: str) -> tuple[Taken, ...]:
        out = (Taken * _MOST_PARAMETERS)()
        count = getattr(self.loaded, f"gp_describe_{self._number[kernel]}")(out)
        return tuple(out[:count])


@functools.cache
def library_of(unit: Unit, instances: tuple[str, ...]) -> Library:
    """The library of a unit's kernels and of these instances of its templates."""
    return Library(built(unit, instances), names_of(unit, instances))


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


# In a storage of up to so many elements, a map names the owner of each. In a larger one, a view owns all that lies
# between its first and its last element.
_MAPPED = 1 << 26


def fields(kind: Any, *names: str) -> list[tuple[str, Any]]:
    """Fields of one type, of a structure of the runtime's."""
    return [(name, kind) for name in names]


class CRegion(ctypes.Structure):
    """gp_region of the runtime."""

    _fields_ = (
        *fields(ctypes.c_uint64, "base", "bytes"),
        *fields(ctypes.c_void_p, "owners", "unwritten"),
        *fields(ctypes.c_int32, "granule", "first", "is_shared"),
    )


@dataclass
class Regions:
    """The regions of one launch, and the arrays in them by number, from 1."""

    all: list[CRegion] = field(default_factory=list)
    arrays: list[Named] = field(default_factory=list)
    _kept: list[Any] = field(default_factory=list)

    def add_tensors(self, tensors: Sequence[tuple[str, Tensor]], unwritten: Unwritten) -> None:
        by_storage: dict[int, list[tuple[str, Tensor]]] = {}
        for name, tensor in tensors:
            if tensor.numel():
                by_storage.setdefault(tensor.untyped_storage().data_ptr(), []).append((name, tensor))
        for base, views in by_storage.items():
            self._add_storage(base, views, unwritten)

    def add_arrays(self, library: Library, entry: KernelEntry, dynamic_bytes: int) -> None:
        """Adds the arrays of the source; `extern __shared__` ones lie in the dynamic shared memory of the launch."""
        source, granule = entry.unit.source, _granule(entry.unit)
        for array in library.arrays:
            base = (library.shared_base if array.is_shared else library.base) + array.start
            # All dynamic ones are one, and no other is so large; findings call it as the kernel does.
            is_dynamic = array.is_shared and array.name and array.bytes == MOST_SHARED
            name = source.dynamic_array_of(entry.plain_name) if is_dynamic else array.name
            size = dynamic_bytes if is_dynamic else array.bytes
            element = number_bytes(entry.unit, source.shared_types.get(name, ""))
            named = Named(name, array.is_shared, None, base, size, element)
            number = self._name(named) if array.name else 0
            if size:
                self.all.append(CRegion(base, size, None, None, granule, number, array.is_shared))
        # The rest of the shared memory. An access there is a fault, and does no harm.
        self.all.append(CRegion(library.shared_base, library.shared_bytes, None, None, granule, -1, 0))
        # Constants, and the compiler's own data. They are no array, and may be read.
        self.all.append(CRegion(library.base, library.bytes, None, None, 1, 0, 0))

    def _add_storage(self, base: int, views: list[tuple[str, Tensor]], unwritten: Unwritten) -> None:
        granule = min(tensor.element_size() for _, tensor in views)
        storage = views[0][1].untyped_storage()
        count = storage.nbytes() // granule
        numbers = [self._name(Named(name, tensor=tensor)) for name, tensor in views]
        if count > _MAPPED:
            for number, (_, tensor) in zip(numbers, views, strict=True):
                start, end = _span(tensor)
                self.all.append(CRegion(start, end - start, None, None, tensor.element_size(), number, 0))
            return
        marks = unwritten.by_granule(base, granule)
        only = views[0][1]
        fills = only.is_contiguous() and storage.nbytes() == only.numel() * only.element_size()
        owners = None if len(views) == 1 and fills else self._owners(views, numbers, granule, count)
        self.all.append(CRegion(base, count * granule, _address(owners), _address(marks), granule, numbers[0], 0))
        self._kept += [owners, marks]

    def _owners(self, views: list[tuple[str, Tensor]], numbers: list[int], granule: int, count: int) -> Any:
        owners = np.zeros(count, np.uint8)
        for number, (_, tensor) in zip(numbers, views, strict=True):
            parts = tensor.element_size() // granule
            by_element = owners[: count // parts * parts].reshape(-1, parts)
            for part in range(parts):
                entries_of(tensor, by_element[:, part])[...] = number
        return owners

    def _name(self, named: Named) -> int:
        self.arrays.append(named)
        return len(self.arrays)


@functools.lru_cache(maxsize=256)
def _granule(unit: Unit) -> int:
    """The bytes of the smallest element that the source's shared memory can hold."""
    words = " ".join((unit.source.everything, *(value for _, value in unit.defines)))
    if re.search(r"\b(?:bool|u?char|u?int8_t)\b", words):
        return 1
    return 2 if re.search(r"half|bfloat16|\bu?short\b|int16_t", words) else 4


def _span(tensor: Tensor) -> tuple[int, int]:
    """The addresses of a tensor's first element and behind its last."""
    last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()


def _address(array: Any) -> int | None:
    return None if array is None else int(array.ctypes.data)
