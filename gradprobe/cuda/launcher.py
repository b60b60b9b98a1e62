"""Launcher: a function of the host in a CUDA source, called with tensors; its launches are those of the module."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..model.failures import TargetFailure
from . import nvrtc, on_cpu
from .c_types import type_of
from .host import HostFunction, HostParameter
from .kernel import device_of, entry_of, scalar, sizes_of
from .on_cpu.host import CLaunch
from .on_cpu.launch import Code, run
from .on_cpu.library import Library
from .source import Unit
from .watch import watching

if TYPE_CHECKING:
    from torch import Tensor

STREAM = "cudaStream_t"


@dataclass(frozen=True)
class Launcher:
    """A function of the host. A call runs it on this machine's CPU, and what it launches where its tensors are."""

    unit: Unit
    function: HostFunction

    def __call__(self, *arguments: Any) -> None:
        """Calls it.

        Args:
            arguments: by position as it takes them, but for its streams: tensors, all of one device; None for a null
                pointer; numbers.

        Raises:
            TargetFailure: it does not compile, the arguments do not fit, it gives an error, or a kernel could not run.
        """
        taken = [one for one in self.function.parameters if one.type != STREAM]
        where = f"{self.function.name} of {self.unit.source.path.name}"
        if len(arguments) != len(taken):
            takes = f"it takes: {', '.join(one.name or one.type for one in taken)}"
            raise TargetFailure(f"{where} takes {len(taken)} arguments, got {len(arguments)}", takes)
        given = dict(zip(taken, arguments, strict=True))
        values = [self._value(where, one, given.get(one)) for one in self.function.parameters]
        call = _HostCall(
            self.unit, [(one.name, each) for one, each in given.items() if hasattr(each, "data_ptr")], where
        )
        python = on_cpu.Python(call.launch, call.allocate, call.fill, call.copy)
        code = on_cpu.call_host(replace(self.unit, has_host=True), self.function.name, values, python)
        if code:
            raise TargetFailure(f"{where} gives the error {code} of CUDA")

    def _value(self, where: str, parameter: HostParameter, argument: Any) -> Any:
        if parameter.type == STREAM:
            return ctypes.c_void_p(0)
        known = type_of(self.unit, parameter.type)
        if known is None:
            raise TargetFailure(f"{where}: the type {parameter.type!r} of parameter {parameter.name!r} is not known")
        return scalar(f"{where}: parameter {parameter.name!r}", known, argument)


class _HostCall:
    """One call, and the memory that is its own."""

    def __init__(self, unit: Unit, tensors: Sequence[tuple[str, Tensor]], where: str) -> None:
        self._unit, self._tensors, self._watch = unit, [*tensors], watching()
        self._device = device_of(where, [tensor for _, tensor in tensors])
        self._watch.given += [tensor for _, tensor in tensors]

    def launch(self, library: Library, launch: CLaunch) -> None:
        name = launch.name.decode()
        entry = entry_of(replace(self._unit, has_host=True), name)
        grid, block = sizes_of(entry.name, [*launch.grid], [*launch.block])
        self._watch.launched(entry, self._device)
        if self._device == "cuda":
            nvrtc.run(
                entry_of(self._unit, name),
                grid,
                block,
                launch.shared_bytes,
                launch.arguments + ctypes.sizeof(ctypes.c_void_p),
            )
        else:
            code = Code(library, launch.kernel, launch.arguments)
            run(entry, code, grid, block, launch.shared_bytes, self._tensors, self._watch)
        self._watch.after(entry.name)

    def allocate(self, size: int) -> int:
        import torch

        memory = torch.empty(max(1, size), dtype=torch.uint8, device=self._device)
        self._watch.unwritten.allocated(memory)
        self._tensors.append((f"allocated_{len(self._tensors)}", memory))
        return memory.data_ptr()

    def fill(self, to: int, value: int, size: int) -> None:
        self._written(to, size).fill_(value & 0xFF)

    def copy(self, to: int, source: int, size: int) -> None:
        self._written(to, size).copy_(self._bytes(source, size))

    def _written(self, to: int, size: int) -> Tensor:
        memory = self._bytes(to, size)
        self._watch.unwritten.written(memory)
        return memory

    def _bytes(self, address: int, size: int) -> Tensor:
        """The memory at an address, as bytes of the storage that it is in.

        Raises:
            TargetFailure: it is in none of this call's tensors.
        """
        import torch

        for _, tensor in self._tensors:
            storage = tensor.untyped_storage()
            start = address - storage.data_ptr()
            if start >= 0 and start + size <= storage.nbytes():
                whole = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
                return whole[start : start + size]
        raise TargetFailure(f"host code fills or copies {size:,} bytes outside the tensors of its arguments")
