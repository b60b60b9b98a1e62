"""HostCall: one call of a function of the host; what it launches, allocates, fills and copies is done here."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ....model.failures import TargetFailure
from .. import nvrtc
from ..kernel import addresses_of, device_of, entry_of, sizes_of
from ..source import Unit
from ..watch import watching
from .build import host_symbol
from .launch import run
from .library import fields, library_of

if TYPE_CHECKING:
    from torch import Tensor

_Sizes = ctypes.c_uint32 * 3


class _CHostLaunch(ctypes.Structure):
    """gp_host_launch of the header."""

    _fields_ = (
        *fields(ctypes.c_char_p, "name"),
        *fields(_Sizes, "grid", "block"),
        *fields(ctypes.c_uint64, "shared_bytes"),
        *fields(ctypes.c_void_p, "kernel", "arguments"),
    )


_LAUNCH = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_CHostLaunch))
_ALLOCATE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_void_p), ctypes.c_uint64)
_FILL = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64)
_COPY = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64)
_FAILED = 719  # cudaErrorLaunchFailure


class _CPython(ctypes.Structure):
    """gp_host of the header."""

    _fields_ = (("launch", _LAUNCH), ("allocate", _ALLOCATE), ("fill", _FILL), ("copy", _COPY))


class HostCall:
    """One call on this machine's CPU, and the memory that is its own. What it launches runs where its tensors are."""

    def __init__(self, unit: Unit, where: str, tensors: Sequence[tuple[str, Tensor]]) -> None:
        self._unit, self._tensors, self._watch = unit, [*tensors], watching()
        self._device = device_of(where, [tensor for _, tensor in tensors])
        self._watch.given += [tensor for _, tensor in tensors]
        self._with_host = replace(unit, has_host=True)
        self._library = library_of(self._with_host, ())
        self._raised: list[BaseException] = []

    def run(self, function: str, values: Sequence[Any]) -> int:
        """Calls a function with C values; its cudaError_t, 0 where it gives none.

        Raises:
            Whatever what it launches raises: it goes on behind that, but nothing is launched any more.
        """
        works: tuple[Callable[..., None], ...] = (self._launch, self._allocate, self._fill, self._copy)
        kinds = (_LAUNCH, _ALLOCATE, _FILL, _COPY)
        described = _CPython(*(kind(self._guarded(work)) for kind, work in zip(kinds, works, strict=True)))
        self._library.loaded.gp_set_python(ctypes.byref(described))
        code: int = getattr(self._library.loaded, host_symbol(function))(addresses_of(values))
        if self._raised:
            raise self._raised[0]
        return code

    def _guarded(self, work: Callable[..., None]) -> Callable[..., int]:
        def call(*given: Any) -> int:
            if self._raised:
                return _FAILED
            try:
                work(*given)
            except BaseException as error:  # C++ can let nothing through
                self._raised.append(error)
                return _FAILED
            return 0

        return call

    def _launch(self, pointer: Any) -> None:
        launch = pointer.contents
        name = launch.name.decode()
        entry = entry_of(self._with_host, name)
        grid, block = sizes_of(entry.name, [*launch.grid], [*launch.block])
        self._watch.launched(entry, self._device)
        if self._device == "cuda":
            # The first of its arguments is the kernel.
            arguments = launch.arguments + ctypes.sizeof(ctypes.c_void_p)
            nvrtc.run(entry_of(self._unit, name), grid, block, launch.shared_bytes, arguments)
        else:
            code = launch.kernel, launch.arguments
            run(entry, self._library, code, grid, block, launch.shared_bytes, self._tensors, self._watch)
        self._watch.after(entry.name)

    def _allocate(self, out: Any, size: int) -> None:
        import torch

        memory = torch.empty(max(1, size), dtype=torch.uint8, device=self._device)
        self._watch.unwritten.allocated(memory)
        self._tensors.append((f"allocated_{len(self._tensors)}", memory))
        out[0] = memory.data_ptr()

    def _fill(self, to: int | None, value: int, size: int) -> None:
        self._written(to, size).fill_(value & 0xFF)

    def _copy(self, to: int | None, source: int | None, size: int) -> None:
        self._written(to, size).copy_(self._bytes(source, size))

    def _written(self, to: int | None, size: int) -> Tensor:
        memory = self._bytes(to, size)
        self._watch.unwritten.written(memory)
        return memory

    def _bytes(self, address: int | None, size: int) -> Tensor:
        """The memory at an address, as bytes of the storage that it is in.

        Raises:
            TargetFailure: it is in none of this call's tensors.
        """
        import torch

        for _, tensor in self._tensors:
            storage = tensor.untyped_storage()
            start = (address or 0) - storage.data_ptr()
            if start >= 0 and start + size <= storage.nbytes():
                whole = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
                return whole[start : start + size]
        raise TargetFailure(f"host code fills or copies {size:,} bytes outside the tensors of its arguments")
