"""Kernels of a .cu file and what launches them, on a CPU or, by NVRTC, on a GPU."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.util
import io
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...inputs.memory import home_of
from ...model.failures import NoKernel, TargetFailure
from .. import CUDA, CUDA_ON_CPU, OPEN, Launch, Launches
from .c_types import POINTER, Arguments, LaunchPlan, written_types
from .on_cpu.launch import run
from .on_cpu.library import Library, library_of
from .source import CudaSource, KernelEntry, compile_errors, read_source

Size = int | Sequence[int]
STREAM = "cudaStream_t"
_BYTES, _SIZES = ctypes.c_uint64, ctypes.POINTER(ctypes.c_uint32)


@dataclass(frozen=True)
class Module:
    """`module.name` or `module["name<arguments>"]` is a Kernel or a Launcher."""

    source: CudaSource

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self[name]

    def __getitem__(self, name: str) -> Any:
        if function := self.source.launchers.get(name):
            return Launcher(self.source, name, function)
        return kernel_of(self.source, name)


def kernel_of(source: CudaSource, name: str) -> Kernel:
    plain, way_out = name.partition("<")[0].strip(), f"it has: {', '.join(source.declared)}"
    found = source.declared.get(plain)
    if found is not None and found.is_template == ("<" in name):
        return Kernel(source, name, found)
    if found is not None and found.is_template:
        way_out = f'it is a template: name an instance, module["{plain}<...>"]'
    raise NoKernel(f"{source.path.name} has no kernel {name!r}", way_out)


class Kernel(KernelEntry):
    def __call__(self, grid: Size, block: Size, shared_bytes: int, /, *arguments: Any) -> None:
        """Launches it, or raises TargetFailure. `grid`, `block`: along x, y and z; those left out are 1.

        Arguments: tensors of one device; None for a null pointer; numbers.
        """
        who = f"kernel {self.name} of {self.source.path.name}"
        given = Arguments(who, self.function.parameters, arguments)
        library, caller = None, 0
        if given.is_on_gpu:
            types = written_types(self.source, self.function.parameters)
        else:
            library = library_of(self.source, self.instance)
            caller, types = library.kernel(self.name)
        addresses = given.addresses(types)  # which lives as long as the launch
        sizes = _sizes(grid), _sizes(block), shared_bytes
        plan = LaunchPlan(self, *sizes, ctypes.addressof(addresses), given.tensors, caller)
        _launch(plan, library, OPEN.get() or Launches())


def _sizes(given: Size) -> tuple[int, ...]:
    sizes = (given,) if isinstance(given, int) else tuple(given)
    if not 1 <= len(sizes) <= 3 or min(sizes) < 1:
        raise TargetFailure(f"a launch takes 1 to 3 sizes above 0, got {sizes}")
    return (*map(int, sizes), 1, 1)[:3]


def _launch(launch: LaunchPlan, library: Library | None, found: Launches) -> None:
    name, threads = launch.kernel.name, math.prod(launch.block)
    if threads > 1024:  # what every GPU allows
        words = f"kernel {name} is launched with {threads:,} threads a block; 1,024 fit"
        raise TargetFailure(words)
    storages = [home_of(tensor) for _, tensor in launch.tensors]
    backend = CUDA if library is None else CUDA_ON_CPU
    found.started.append(Launch(launch.kernel, backend, storages))
    if library is None:
        _run_on_gpu(launch)
    else:
        run(launch, library, found)
    found.after(name)


class Launcher(KernelEntry):
    def __call__(self, *arguments: Any) -> None:
        who = f"{self.name} of {self.source.path.name}"
        parameters = [each for each in self.function.parameters if each.type != STREAM]
        given = Arguments(who, parameters, arguments)
        addresses = given.addresses(written_types(self.source, parameters))
        if code := _HostCall(self.source, given).run(self.name, addresses):
            raise TargetFailure(f"{who} gives the error {code} of CUDA")


class _HostCall:
    def __init__(self, source: CudaSource, given: Arguments) -> None:
        self._source, self._is_on_gpu, self._tensors = source, given.is_on_gpu, given.tensors
        self._library, self._found = library_of(source, has_host=True), OPEN.get() or Launches()
        self._raised: BaseException | None = None

    def run(self, function: str, addresses: Any) -> int:
        loaded = self._library.loaded
        of_launch = (ctypes.c_char_p, _SIZES, _SIZES, _BYTES, POINTER, POINTER)
        launch = self._callable(self._launch, *of_launch)
        allocate = self._callable(self._allocate, ctypes.POINTER(POINTER), _BYTES)
        store = self._callable(self._store, POINTER, POINTER, ctypes.c_int, _BYTES)
        loaded.gp_set_python(launch, allocate, store)
        code: int = getattr(loaded, f"gp_host_{function}")(addresses)
        if self._raised is not None:
            raise self._raised
        return code

    def _callable(self, work: Callable[..., None], *types: Any) -> Any:
        def call(*given: Any) -> int:
            try:
                if self._raised is None:
                    work(*given)
            except BaseException as error:  # C++ can let nothing through
                self._raised = error
            return 0 if self._raised is None else 719  # cudaErrorLaunchFailure

        return ctypes.CFUNCTYPE(ctypes.c_int, *types)(call)

    def _launch(
        self, name: bytes, grid: Any, block: Any, shared_bytes: int, caller: int, arguments: int
    ) -> None:
        library = None if self._is_on_gpu else self._library
        place = arguments if library else arguments + ctypes.sizeof(POINTER)
        kernel = kernel_of(self._source, name.decode())
        sizes = _sizes(grid[:3]), _sizes(block[:3]), shared_bytes
        _launch(LaunchPlan(kernel, *sizes, place, self._tensors, caller), library, self._found)

    def _allocate(self, out: Any, size: int) -> None:
        import torch

        device = "cuda" if self._is_on_gpu else "cpu"
        memory = torch.empty(max(1, size), dtype=torch.uint8, device=device)
        self._found.unwritten.allocated(memory)
        self._tensors.append((f"allocated_{len(self._tensors)}", memory))
        out[0] = memory.data_ptr()

    def _store(self, to: int | None, source: int | None, value: int, size: int) -> None:
        stored = self._bytes(to, size)
        stored[...] = self._bytes(source, size) if value < 0 else value
        self._found.unwritten.written(stored)

    def _bytes(self, address: int | None, size: int) -> Any:
        import torch

        for _, tensor in self._tensors:
            storage = tensor.untyped_storage()
            start = (address or 0) - storage.data_ptr()
            if 0 <= start <= storage.nbytes() - size:
                whole = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
                return whole[start : start + size]
        words = f"host code fills or copies {size:,} bytes outside its tensors"
        raise TargetFailure(words)


def load(
    path: str | Path,
    *,
    defines: Mapping[str, object] | None = None,
    include: Sequence[str | Path] = (),
) -> Module:
    """The kernels of a CUDA C++ file beside the caller's, else here; compiled at the first launch; or TargetFailure.

    `defines`: macros, `{"BLOCK_M": 32, "SCALAR": "float"}`; `include`: folders besides its own.
    """
    folders, macros = [str(Path(folder).resolve()) for folder in include], dict[str, str]()
    for name, value in (defines or {}).items():
        macros[name] = str(int(value) if isinstance(value, bool) else value)
    beside = Path(sys._getframe(1).f_code.co_filename).resolve().parent / path
    return Module(read_source(beside if beside.is_file() else Path(path), folders, macros))


# --- on a GPU, compiled by NVRTC through cuda-core


def _run_on_gpu(launch: LaunchPlan) -> None:
    import torch

    core = _core()
    from cuda.bindings import driver

    kernel, name, device = launch.kernel, launch.kernel.name, torch.cuda.current_device()
    core.Device(device).set_current()
    handle = int(_compiled(kernel.source, kernel.instance, device).get_kernel(name).handle)
    if launch.shared_bytes > 48 << 10:  # more than every kernel may have must be allowed first
        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        about = (launch.shared_bytes, driver.CUkernel(handle), device)
        (code,) = driver.cuKernelSetAttribute(attribute, *about)
        if code != driver.CUresult.CUDA_SUCCESS:
            needs = f"{launch.shared_bytes:,} bytes of shared memory a block"
            raise TargetFailure(f"kernel {name}: it needs {needs}, more than this GPU has")
    # By the driver, to which every argument is the address of a value: cuda-core knows no structures.
    stream = torch.cuda.current_stream().cuda_stream
    sizes = (*launch.grid, *launch.block, launch.shared_bytes)
    kernel_there = driver.CUfunction(handle)
    (code,) = driver.cuLaunchKernel(kernel_there, *sizes, stream, launch.arguments, 0)
    if code != driver.CUresult.CUDA_SUCCESS:
        raise TargetFailure(f"kernel {name} could not be launched: {code.name}")


def _core() -> Any:
    with contextlib.suppress(ImportError):
        import cuda.core

        if hasattr(cuda.core, "Program"):
            return cuda.core
    words = "CUDA sources are compiled on a GPU by cuda-core 1.2 or later"
    raise TargetFailure(words, "pip install 'gradprobe[cuda]'")


@functools.cache
def _compiled(source: CudaSource, instance: str, device: int) -> Any:
    core, log = _core(), io.StringIO()
    folders = [str(source.path.parent), *source.folders, *_headers()]
    try:
        options = core.ProgramOptions(
            name=str(source.path), define_macro=[*source.defines] or None, std="c++17",
            lineinfo=True, include_path=folders,
        )  # fmt: skip
        program = core.Program(f"{source.of_kernels}\n{source.using}", "c++", options)
        names = tuple(source.kernels(instance))
        return program.compile("cubin", name_expressions=names, logs=log)
    except Exception as error:
        errors = compile_errors(f"{log.getvalue()}\n{error}")
        words = f"{source.path.name} does not compile for the GPU: {errors}"
        raise TargetFailure(words) from error


def _headers() -> list[str]:
    folders = [Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "include")]
    nvidia = importlib.util.find_spec("nvidia")
    for root in nvidia.submodule_search_locations or () if nvidia else ():
        folders += sorted(Path(root).glob("*/include"))
    return [str(folder) for folder in folders if (folder / "cuda_fp16.h").is_file()]
