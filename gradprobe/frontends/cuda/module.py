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
from ..interface import CUDA, CUDA_ON_CPU
from . import c_types, nvrtc
from .c_types import STREAM, LaunchPlan, Sizes
from .cuda_syntax import DeclaredFunction
from .on_cpu.launch import run
from .on_cpu.library import Library, library_of
from .source import CudaSource, KernelEntry, launching_functions, read_source
from .watch import Watch, watching

if TYPE_CHECKING:
    from torch import Tensor

Size = int | Sequence[int]
# What every GPU allows.
_MOST_THREADS = 1024


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
        launching = launching_functions(self.source.text)
        return Launcher(self.source, launching[name]) if name in launching else kernel_of(self.source, name)


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
        who, sizes = f"kernel {self.name} of {self.file.name}", (_sizes(grid), _sizes(block))
        tensors = c_types.named_tensors(self.parameters, arguments)
        library, caller = None, 0
        types: Sequence[c_types.Taken] = c_types.types_as_written(self.source, self.parameters)
        if c_types.device_of(who, tensors) == "cpu":
            library = library_of(self.source, self.name if "<" in self.name else "")
            types, caller = library.takes(self.name), library.kernel(self.name)
        values = c_types.c_values(who, self.parameters, types, arguments)  # which live as long as the launch
        addresses = c_types.addresses_of(values)
        plan = LaunchPlan(self, *sizes, shared_bytes, ctypes.addressof(addresses), tensors, caller)
        _launch(plan, library, watching())


def _launch(plan: LaunchPlan, library: Library | None, watch: Watch) -> None:
    """Runs the kernel by a library on this CPU, without one on a GPU."""
    name, threads = plan.kernel.name, math.prod(plan.block)
    if threads > _MOST_THREADS:
        raise TargetFailure(f"kernel {name} is launched with {threads:,} threads a block; 1,024 fit")
    watch.launched(plan.kernel, CUDA if library is None else CUDA_ON_CPU, plan.tensors)
    if library is None:
        nvrtc.run(plan)
    else:
        run(plan, library, watch)
    watch.after(name)


def _sizes(given: Size) -> Sizes:
    """Along x, y and z; those left out are 1."""
    sizes = (given,) if isinstance(given, int) else tuple(given)
    if not 1 <= len(sizes) <= 3 or min(sizes) < 1:
        raise TargetFailure(f"the sizes of a launch must be 1 to 3 numbers above 0, got {sizes}")
    x, y, z = (*map(int, sizes), 1, 1)[:3]
    return x, y, z


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


@dataclass(frozen=True)
class Launcher:
    """A function of the host. A call runs it on this machine's CPU, and what it launches where its tensors are."""

    source: CudaSource
    function: DeclaredFunction

    def __call__(self, *arguments: Any) -> None:
        """Calls it.

        Args:
            arguments: by position as it takes them, but for its streams: tensors, all of one device; None for a null
                pointer; numbers.

        Raises:
            TargetFailure: it does not compile, the arguments do not fit, it gives an error, or a kernel could not run.
        """
        every, where = self.function.parameters, f"{self.function.name} of {self.source.path.name}"
        parameters = [parameter for parameter in every if parameter.type != STREAM]
        tensors = c_types.named_tensors(parameters, arguments)
        device = c_types.device_of(where, tensors)
        values = iter(c_types.c_values(where, parameters, c_types.types_as_written(self.source, parameters), arguments))
        passed = [ctypes.c_void_p() if parameter.type == STREAM else next(values) for parameter in every]
        if code := _HostCall(self.source, device, tensors).run(self.function.name, passed):
            raise TargetFailure(f"{where} gives the error {code} of CUDA")


_LAUNCH = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_char_p, *[ctypes.POINTER(ctypes.c_uint32)] * 2, ctypes.c_uint64, *[ctypes.c_void_p] * 2
)
_ALLOCATE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_void_p), ctypes.c_uint64)
_FILL = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64)
_COPY = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64)
_FAILED = 719  # cudaErrorLaunchFailure


class _HostCall:
    """One call of a host function, and the memory that is its own: what it asks of CUDA's runtime is done here."""

    def __init__(self, source: CudaSource, device: str, tensors: Sequence[tuple[str, Tensor]]) -> None:
        self._source, self._device, self._tensors = source, device, [*tensors]
        self._library = library_of(source, has_host=True)
        self._watch = watching()
        self._raised: BaseException | None = None

    def run(self, function: str, values: Sequence[Any]) -> int:
        """Calls it with C values, and gives its cudaError_t.

        What a launch raises is raised when it has ended: it goes on behind that, but nothing is launched any more.
        """
        launch, allocate = _LAUNCH(self._guarded(self._launch)), _ALLOCATE(self._guarded(self._allocate))
        fill, copy = _FILL(self._guarded(self._fill)), _COPY(self._guarded(self._copy))
        self._library.loaded.gp_set_python(launch, allocate, fill, copy)
        code: int = getattr(self._library.loaded, f"gp_host_{function}")(c_types.addresses_of(values))
        if self._raised is not None:
            raise self._raised
        return code

    def _guarded(self, work: Callable[..., None]) -> Callable[..., int]:
        def call(*given: Any) -> int:
            try:
                if self._raised is None:
                    work(*given)
            except BaseException as error:  # C++ can let nothing through
                self._raised = error
            return 0 if self._raised is None else _FAILED

        return call

    def _launch(self, name: bytes, grid: Any, block: Any, shared_bytes: int, caller: int, arguments: int) -> None:
        kernel, is_on_cpu = kernel_of(self._source, name.decode()), self._device == "cpu"
        if not is_on_cpu:  # where nothing needs the first of its arguments: what the caller calls
            arguments += ctypes.sizeof(ctypes.c_void_p)
        sizes = _sizes(grid[:3]), _sizes(block[:3])
        plan = LaunchPlan(kernel, *sizes, shared_bytes, arguments, self._tensors, caller)
        _launch(plan, self._library if is_on_cpu else None, self._watch)

    def _allocate(self, out: Any, size: int) -> None:
        import torch

        memory = torch.empty(max(1, size), dtype=torch.uint8, device=self._device)
        self._watch.unwritten.allocated(memory)
        self._tensors.append((f"allocated_{len(self._tensors)}", memory))
        out[0] = memory.data_ptr()

    def _fill(self, to: int | None, value: int, size: int) -> None:
        memory = self._bytes(to, size).fill_(value & 0xFF)
        self._watch.unwritten.written(memory)

    def _copy(self, to: int | None, source: int | None, size: int) -> None:
        memory = self._bytes(to, size).copy_(self._bytes(source, size))
        self._watch.unwritten.written(memory)

    def _bytes(self, address: int | None, size: int) -> Tensor:
        """The memory at an address, as bytes of the storage of one of this call's tensors."""
        import torch

        for _, tensor in self._tensors:
            storage = tensor.untyped_storage()
            start = (address or 0) - storage.data_ptr()
            if start >= 0 and start + size <= storage.nbytes():
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
    plain = {name: int(value) if isinstance(value, bool) else value for name, value in (defines or {}).items()}
    beside = Path(sys._getframe(1).f_code.co_filename).resolve().parent / path
    file = beside if beside.is_file() else Path(path)
    return Module(read_source(file, folders, {name: str(value) for name, value in plain.items()}))
