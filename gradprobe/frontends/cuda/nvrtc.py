"""Launches a kernel on a GPU, compiled by NVRTC through cuda-core."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import io
import os
from pathlib import Path
from typing import Any

from ...model.failures import TargetFailure
from .c_types import LaunchPlan
from .source import CudaSource, compile_errors


def run(launch: LaunchPlan) -> None:
    """On torch's current stream."""
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
    (code,) = driver.cuLaunchKernel(
        driver.CUfunction(handle), *sizes, stream, launch.arguments, 0
    )
    if code != driver.CUresult.CUDA_SUCCESS:
        raise TargetFailure(f"kernel {name} could not be launched: {code.name}")


def _core() -> Any:
    with contextlib.suppress(ImportError):
        import cuda.core

        if hasattr(cuda.core, "Program"):
            return cuda.core
    words = "CUDA sources are compiled on a GPU by cuda-core 1.2 or later, which is not installed"
    raise TargetFailure(words, "pip install 'gradprobe[cuda]'")


@functools.cache
def _compiled(source: CudaSource, instance: str, device: int) -> Any:
    core = _core()
    log, folders = io.StringIO(), [str(source.path.parent), *source.folders, *_headers()]
    try:
        options = core.ProgramOptions(
            name=str(source.path), define_macro=[*source.defines] or None, std="c++17",
            lineinfo=True, include_path=folders,
        )  # fmt: skip
        program = core.Program(f"{source.of_kernels}\n{source.using}", "c++", options)
        return program.compile(
            "cubin", name_expressions=tuple(source.kernels(instance)), logs=log
        )
    except Exception as error:
        errors = compile_errors(f"{log.getvalue()}\n{error}")
        raise TargetFailure(
            f"{source.path.name} does not compile for the GPU: {errors}"
        ) from error


def _headers() -> list[str]:
    homes = (os.environ.get("CUDA_HOME"), "/usr/local/cuda")
    folders = [Path(home) / "include" for home in homes if home]
    nvidia = importlib.util.find_spec("nvidia")
    for root in nvidia.submodule_search_locations or () if nvidia else ():
        folders += sorted(Path(root).glob("*/include"))
    return [str(folder) for folder in folders if (folder / "cuda_fp16.h").is_file()]
