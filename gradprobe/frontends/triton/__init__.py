"""Triton, compiled or interpreted on the CPU, where a GPU is stood in for."""

import contextlib
import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import Any

from ...model.case import ARCHITECTURES, DEFAULT_ARCHITECTURE, Architecture
from .. import replaced


def interpreting() -> bool:
    return os.environ.get("TRITON_INTERPRET") == "1"


# --- the GPU that is not there

_asked_for: str | None = None
# Of `torch.version.hip`, by which files know ROCm.
_HIP = "6.4.0"
# No file is known to decide by it: an H100's.
_REGISTERS = 65536


def stand_in_for(arch: str | None) -> None:
    global _asked_for  # noqa: PLW0603 - a process has one GPU, which files ask for when they are imported
    _asked_for = arch


def architecture() -> str | None:
    return _asked_for


@contextlib.contextmanager
def gpu_stood_in(*, as_cuda: bool = False) -> Iterator[None]:
    """While open, the CPU stands in for a GPU where kernels are interpreted; `as_cuda`: by `is_cuda` too."""
    with contextlib.ExitStack() as stack:
        for replacement in _replacements(as_cuda) if interpreting() else ():
            stack.enter_context(replacement)
        yield


def _replacements(as_cuda: bool) -> Iterator[AbstractContextManager[Any]]:
    import torch

    if torch.cuda.is_available():
        return
    gpu = ARCHITECTURES[_asked_for or DEFAULT_ARCHITECTURE]
    yield _DriverWatcher(gpu)
    answers = {"get_device_properties": _properties(gpu), "get_device_name": gpu.name}
    answers |= {"get_device_capability": gpu.capability, "current_device": 0}
    for name in ("set_device", "synchronize", *answers):
        yield replaced(torch.cuda, name, _answering(answers.get(name)))
    for name in ("device", "device_of"):
        yield replaced(torch.cuda, name, contextlib.nullcontext)
    if gpu.gfx:
        yield replaced(torch.version, "hip", _HIP)
    if as_cuda:
        yield replaced(torch.Tensor, "is_cuda", property(lambda _: True))
    yield _on_the_cpu()


def _properties(gpu: Architecture) -> Any:
    return SimpleNamespace(
        name=gpu.name,
        major=gpu.capability[0],
        minor=gpu.capability[1],
        multi_processor_count=gpu.processors,
        total_memory=gpu.gibibytes << 30,
        warp_size=gpu.warp,
        shared_memory_per_block_optin=gpu.shared_bytes,
        # A kibibyte of each processor is the system's.
        shared_memory_per_multiprocessor=gpu.shared_bytes + (0 if gpu.gfx else 1 << 10),
        gcnArchName=gpu.gfx or gpu.name,
    )


def _on_the_cpu() -> Any:
    import torch
    from torch.overrides import TorchFunctionMode

    def there(value: Any) -> Any:
        is_device = isinstance(value, (str, torch.device))
        is_gpu = is_device and str(value).partition(":")[0] == "cuda"
        return torch.device("cpu") if is_gpu else value

    class Mode(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, _: Any, args: Any = (), named: Any = None
        ) -> Any:
            if func is torch.Tensor.cuda:
                return args[0]
            named = {name: there(value) for name, value in (named or {}).items()}
            return func(*map(there, args), **named)

    return Mode()


class _DriverWatcher:
    """Finds no module; as Triton imports one behind its driver, it replaces that."""

    def __init__(self, gpu: Architecture) -> None:
        self._gpu = gpu
        self._driver: Any = None
        self._before: dict[str, Any] = {}

    def find_spec(self, *_: Any) -> None:
        module: Any = sys.modules.get("triton.runtime.driver")
        is_there = hasattr(module, "driver") and not module.__spec__._initializing
        if self._driver is None and is_there:
            self._driver, self._before = module.driver, dict(vars(module.driver))
            self._driver.set_active(_driver(self._gpu))

    def __enter__(self) -> None:
        sys.meta_path.insert(0, self)
        self.find_spec()

    def __exit__(self, *_: object) -> None:
        sys.meta_path.remove(self)
        if self._driver is not None:
            vars(self._driver).update(self._before)


def target_of(gpu: Architecture) -> Any:
    from triton.backends.compiler import GPUTarget

    major, minor = gpu.capability
    return GPUTarget("hip" if gpu.gfx else "cuda", gpu.gfx or 10 * major + minor, gpu.warp)


def _driver(gpu: Architecture) -> Any:
    import torch

    properties = {"max_shared_mem": gpu.shared_bytes, "max_num_regs": _REGISTERS}
    properties |= {"multiprocessor_count": gpu.processors, "warpSize": gpu.warp}
    return SimpleNamespace(
        utils=SimpleNamespace(get_device_properties=_answering(properties)),
        get_current_target=_answering(target_of(gpu)),
        get_current_device=_answering(0),
        get_active_torch_device=_answering(torch.device("cpu")),
    )


def _answering(value: Any) -> Any:
    return lambda *_, **__: value
