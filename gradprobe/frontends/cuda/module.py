"""Module: the kernels of a .cu file, and the functions that launch them, callable on tensors of the CPU or of a GPU."""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...model.failures import NoKernel, TargetFailure
from .. import CUDA, CUDA_ON_CPU, Launch
from . import nvrtc
from .c_types import STREAM, LaunchPlan, Taken, addresses_of, c_values, types_as_written
from .cuda_syntax import Declaration, DeclaredFunction
from .on_cpu.launch import run
from .on_cpu.library import Library, library_of
from .source import CudaSource, KernelEntry, read_source
from .watch import watching

if TYPE_CHECKING:
    from torch import Tensor

    Tensors = Sequence[tuple[str, Tensor]]

Size = int | Sequence[int]
# What every GPU allows.
_MOST_THREADS = 1024
_POINTER, _BYTES, _SIZES = ctypes.c_void_p, ctypes.c_uint64, ctypes.POINTER(ctypes.c_uint32)
_FAILED = 719  # cudaErrorLaunchFailure


@dataclass(frozen=True)
class Module:
    """A .cu file under its options: `module.name` or `module["name<arguments>"]` is a kernel, or what launches some."""

    source: CudaSource

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self[name]

    def __getitem__(self, name: str) -> Any:
        """A kernel by its name, or one instance of a template: `module["backward<32, float>"]`; or a Launcher.

        Raises:
            TargetFailure: the file has no such kernel, and no such function that launches some.
        """
        function = self.source.launchers.get(name)
        return Launcher(self.source, function) if function else kernel_of(self.source, name)


def kernel_of(source: CudaSource, name: str) -> Kernel:
    """A kernel by its name, or one instance of a template: `backward<32, float>`; NoKernel where there is none."""
    plain = name.partition("<")[0].strip()
    found = source.declared.get(plain)
    if found is not None and found.is_template == ("<" in name):
        return Kernel(source, name, found.parameters)
    way_out = f"it has: {', '.join(source.declared) or 'none'}"
    if found is not None and found.is_template:
        way_out = f'it is a template: name an instance, module["{plain}<...>"]'
    raise NoKernel(f"{source.path.name} has no kernel {name!r}", way_out)


class Kernel(KernelEntry):
    """A kernel that a call launches, and on the CPU runs to its end."""

    def __call__(self, grid: Size, block: Size, shared_bytes: int, /, *arguments: Any) -> None:
        """Launches it.

        Args:
            grid: blocks along x, y and z; those left out are 1.
            block: threads of each along x, y and z.
            shared_bytes: of dynamic shared memory.
            arguments: by position as the kernel takes them: tensors, all of one device; None for a null pointer;
                numbers, which become what the parameter is declared as.

        Raises:
            TargetFailure: it does not compile, the arguments do not fit its parameters, or it could not run to its end.
        """
        who = f"kernel {self.name} of {self.file.name}"
        tensors, device = _given(who, self.parameters, arguments)
        library, caller = None, 0
        types: Sequence[Taken] = types_as_written(self.source, self.parameters)
        if device == "cpu":
            library = library_of(self.source, self.name if "<" in self.name else "")
            types, caller = library.takes(self.name), library.kernel(self.name)
        values = c_values(who, self.parameters, types, arguments)  # which live as long as the launch
        addresses = addresses_of(values)
        place = ctypes.addressof(addresses)
        _launch(LaunchPlan(self, _sizes(grid), _sizes(block), shared_bytes, place, tensors, caller), library)


def _given(who: str, parameters: Sequence[Declaration], arguments: Sequence[Any]) -> tuple[Tensors, str]:
    """The tensors among arguments, by their parameters' names, and their device."""
    tensors = []
    for parameter, argument in zip(parameters, arguments, strict=False):
        if hasattr(argument, "data_ptr"):
            tensors.append((parameter.name, argument))
    devices = {tensor.device.type for _, tensor in tensors} or {"cpu"}
    if len(devices) > 1 or devices - {"cpu", "cuda"}:
        raise TargetFailure(f"{who} got tensors on {' and '.join(sorted(devices))}", "move them to one device")
    return tensors, devices.pop()


def _sizes(given: Size) -> tuple[int, int, int]:
    """Along x, y and z; those left out are 1."""
    sizes = (given,) if isinstance(given, int) else tuple(given)
    if not 1 <= len(sizes) <= 3 or min(sizes) < 1:
        raise TargetFailure(f"the sizes of a launch must be 1 to 3 numbers above 0, got {sizes}")
    x, y, z = (*map(int, sizes), 1, 1)[:3]
    return x, y, z


def _launch(launch: LaunchPlan, library: Library | None) -> None:
    """Runs a kernel by a library on this CPU, without one on a GPU."""
    name, threads, watch = launch.kernel.name, math.prod(launch.block), watching()
    if threads > _MOST_THREADS:
        raise TargetFailure(f"kernel {name} is launched with {threads:,} threads a block; 1,024 fit")
    storages = [tensor.untyped_storage().data_ptr() for _, tensor in launch.tensors]
    watch.launches.append(Launch(launch.kernel, CUDA if library is None else CUDA_ON_CPU, storages))
    if library is None:
        nvrtc.run(launch)
    else:
        run(launch, library, watch)
    watch.after(name)


@dataclass(frozen=True)
class Launcher:
    """A function of the host. A call runs it on this machine's CPU, and what it launches where its tensors are."""

    source: CudaSource
    function: DeclaredFunction

    def __call__(self, *arguments: Any) -> None:
        """Calls it with its arguments but for its streams, as a kernel is; TargetFailure where it gives an error."""
        every, where = self.function.parameters, f"{self.function.name} of {self.source.path.name}"
        parameters = [parameter for parameter in every if parameter.type != STREAM]
        tensors, device = _given(where, parameters, arguments)
        values = c_values(where, parameters, types_as_written(self.source, parameters), arguments)
        for at, parameter in enumerate(every):
            if parameter.type == STREAM:
                values.insert(at, _POINTER())
        if code := _HostCall(self.source, device, tensors).run(self.function.name, values):
            raise TargetFailure(f"{where} gives the error {code} of CUDA")


class _HostCall:
    """One call of a host function, and the memory that is its own: what it asks of CUDA's runtime is done here."""

    def __init__(self, source: CudaSource, device: str, tensors: Tensors) -> None:
        self._source, self._device, self._tensors = source, device, [*tensors]
        self._library = library_of(source, has_host=True)
        self._unwritten = watching().unwritten
        self._raised: BaseException | None = None

    def run(self, function: str, values: Sequence[Any]) -> int:
        """Calls it with C values, and gives its cudaError_t.

        What a launch raises is raised when it has ended: it goes on behind that, but nothing is launched any more.
        """
        asked = [
            self._callable(self._launch, ctypes.c_char_p, _SIZES, _SIZES, _BYTES, _POINTER, _POINTER),
            self._callable(self._allocate, ctypes.POINTER(_POINTER), _BYTES),
            self._callable(self._fill, _POINTER, ctypes.c_int, _BYTES),
            self._callable(self._copy, _POINTER, _POINTER, _BYTES),
        ]
        self._library.loaded.gp_set_python(*asked)
        code: int = getattr(self._library.loaded, f"gp_host_{function}")(addresses_of(values))
        if self._raised is not None:
            raise self._raised
        return code

    def _callable(self, work: Callable[..., None], *types: Any) -> Any:
        """What C++ can call: 0 where the work is done."""

        def call(*given: Any) -> int:
            try:
                if self._raised is None:
                    work(*given)
            except BaseException as error:  # C++ can let nothing through
                self._raised = error
            return 0 if self._raised is None else _FAILED

        return ctypes.CFUNCTYPE(ctypes.c_int, *types)(call)

    def _launch(self, name: bytes, grid: Any, block: Any, shared_bytes: int, caller: int, arguments: int) -> None:
        kernel, library = kernel_of(self._source, name.decode()), self._library
        sizes = _sizes(grid[:3]), _sizes(block[:3])
        if self._device == "cpu":
            _launch(LaunchPlan(kernel, *sizes, shared_bytes, arguments, self._tensors, caller), library)
        else:  # where nothing needs the first of its arguments: what the caller calls
            arguments += ctypes.sizeof(_POINTER)
            _launch(LaunchPlan(kernel, *sizes, shared_bytes, arguments, self._tensors), None)

    def _allocate(self, out: Any, size: int) -> None:
        import torch

        memory = torch.empty(max(1, size), dtype=torch.uint8, device=self._device)
        self._unwritten.allocated(memory)
        self._tensors.append((f"allocated_{len(self._tensors)}", memory))
        out[0] = memory.data_ptr()

    def _fill(self, to: int | None, value: int, size: int) -> None:
        self._unwritten.written(self._bytes(to, size).fill_(value & 0xFF))

    def _copy(self, to: int | None, source: int | None, size: int) -> None:
        self._unwritten.written(self._bytes(to, size).copy_(self._bytes(source, size)))

    def _bytes(self, address: int | None, size: int) -> Tensor:
        """The memory at an address, as bytes of the storage of one of this call's tensors."""
        for _, tensor in self._tensors:
            storage = tensor.untyped_storage()
            start = (address or 0) - storage.data_ptr()
            if start >= 0 and start + size <= storage.nbytes():
                import torch

                whole = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
                return whole[start : start + size]
        raise TargetFailure(f"host code fills or copies {size:,} bytes outside the tensors of its arguments")


def load(
    path: str | Path, *, defines: Mapping[str, object] | None = None, include: Sequence[str | Path] = ()
) -> Module:
    """The kernels of a CUDA C++ file. Nothing is compiled before the first launch, and then once for each device.

    Args:
        path: of the file; one that is not absolute is sought beside the file of the caller's module, then here.
        defines: macros, set before the file is read: `{"BLOCK_M": 32, "SCALAR": "float"}`.
        include: folders in which `#include "..."` is sought besides the file's own.

    Raises:
        TargetFailure: there is no such file.
    """
    folders = [str(Path(folder).resolve()) for folder in include]
    macros = {}
    for name, value in (defines or {}).items():
        macros[name] = str(int(value) if isinstance(value, bool) else value)
    beside = Path(sys._getframe(1).f_code.co_filename).resolve().parent / path
    return Module(read_source(beside if beside.is_file() else Path(path), folders, macros))
