"""Launches a kernel on a GPU. NVRTC compiles it at run time, through cuda-core."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import io
import os
import re
from pathlib import Path
from typing import Any

from ...model.failures import TargetFailure
from .kernel import KernelEntry, Sizes, compiled_for, first_errors
from .source import Unit

# The dynamic shared memory that every kernel may have. More must be allowed first.
_USUAL_SHARED = 48 << 10


def run(entry: KernelEntry, grid: Sizes, block: Sizes, shared_bytes: int, arguments: int) -> None:
    """Launches a kernel on torch's current stream. Its errors are seen at the next synchronisation.

    Args:
        arguments: where the addresses of its arguments stand.

    Raises:
        TargetFailure: cuda-core is missing, the source does not compile, or the sizes do not fit.
    """
    core = _core()
    import torch
    from cuda.bindings import driver

    kernel = compiled_for(entry, _for_this_device).get_kernel(entry.name)
    if shared_bytes > _USUAL_SHARED:
        _allow(kernel, shared_bytes, entry.name)
    core.Device().set_current()
    # By the driver, to which every argument is the address of a value: cuda-core knows no structures.
    function, stream = driver.CUfunction(int(kernel.handle)), torch.cuda.current_stream().cuda_stream
    (code,) = driver.cuLaunchKernel(function, *grid, *block, shared_bytes, stream, arguments, 0)
    if code != driver.CUresult.CUDA_SUCCESS:
        raise TargetFailure(f"kernel {entry.name} could not be launched: {code.name}")


@functools.cache
def _core() -> Any:
    with contextlib.suppress(ImportError):
        import cuda.core

        if hasattr(cuda.core, "Program"):
            return cuda.core
    words = "CUDA sources are compiled on a GPU by cuda-core 1.2 or later, which is not installed"
    raise TargetFailure(words, "pip install 'gradprobe[cuda]'")


def _for_this_device(unit: Unit, instances: tuple[str, ...]) -> Any:
    import torch

    return _compiled(unit, instances, torch.cuda.current_device())


@functools.cache
def _compiled(unit: Unit, instances: tuple[str, ...], device: int) -> Any:
    """The object code of a unit, compiled once for each device."""
    core = _core()
    core.Device(device).set_current()
    named = {"name": str(unit.source.path), "define_macro": [*unit.defines] or None}
    include = [str(unit.source.path.parent), *unit.include, *_headers()]
    options = core.ProgramOptions(**named, std="c++17", lineinfo=True, include_path=include)
    log = io.StringIO()
    try:
        names = "".join(f"\nusing namespace {name};" for name in unit.source.namespaces)
        program = core.Program(f"{unit.source.of_kernels}{names}\n", "c++", options)
        return program.compile("cubin", name_expressions=(*unit.source.kernels, *instances), logs=log)
    except Exception as error:
        told = _errors(f"{log.getvalue()}\n{error}", unit.source.path)
        raise TargetFailure(f"{unit.source.path.name} does not compile for the GPU: {told}") from error


def _errors(printed: str, path: Path) -> str:
    """The first errors of NVRTC, with the lines of the file."""
    found = re.findall(r"^(\S[^(\n]*)\((\d+)\): (?:catastrophic )?error(?: #\S+)?: (.*)$", printed, re.MULTILINE)
    return first_errors((f"{Path(file).name or path.name}:{line}: {words}" for file, line, words in found), printed)


def _allow(kernel: Any, shared_bytes: int, name: str) -> None:
    """Raises the limit of a kernel's dynamic shared memory."""
    import torch
    from cuda.bindings import driver

    attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    handle = driver.CUkernel(int(kernel.handle))
    (code,) = driver.cuKernelSetAttribute(attribute, shared_bytes, handle, torch.cuda.current_device())
    if code != driver.CUresult.CUDA_SUCCESS:
        raise TargetFailure(
            f"kernel {name}: it needs {shared_bytes:,} bytes of shared memory a block, more than this GPU has"
        )


@functools.cache
def _headers() -> tuple[str, ...]:
    """The folders of CUDA's headers, such as cuda_fp16.h: in the toolkit, or in the packages that torch installs."""
    homes = [os.environ.get("CUDA_HOME", ""), os.environ.get("CUDA_PATH", ""), "/usr/local/cuda"]
    folders = [Path(home) / "include" for home in homes if home]
    nvidia = importlib.util.find_spec("nvidia")
    for root in nvidia.submodule_search_locations or () if nvidia else ():
        folders += sorted(Path(root).glob("*/include"))
    return tuple(str(folder) for folder in folders if (folder / "cuda_fp16.h").is_file())
