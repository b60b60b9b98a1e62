"""The GPU that is not there: what Triton and torch say of one while a target is imported, and while it runs."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from ...model.architectures import ARCHITECTURES, DEFAULT, Architecture
from ...processes.attributes import replaced
from . import interpreting

_asked_for: str | None = None
# Of `torch.version.hip`, by which files know ROCm.
_HIP = "6.4.0"
# No file is known to decide by it: an H100's.
_REGISTERS = 65536


def stand_in_for(arch: str | None) -> None:
    """From now on the GPU that is not there is one of this architecture; None for the default."""
    global _asked_for  # noqa: PLW0603 - a process has one GPU, which files ask for when they are imported
    _asked_for = arch


def architecture() -> str | None:
    """The architecture that was asked for; None where none was."""
    return _asked_for


@contextlib.contextmanager
def gpu_stood_in(*, as_cuda: bool = False) -> Iterator[None]:
    """While open, Triton's driver and torch's device properties are those of the GPU that is stood in for.

    This changes nothing where there is a GPU, or where kernels are not interpreted. `torch.cuda.is_available()` stays
    False, and all tensors lie on the CPU, also those that are asked for on the GPU.

    Args:
        as_cuda: whether every tensor's `is_cuda` is True.
    """
    if not interpreting():
        yield
        return
    import torch

    if torch.cuda.is_available():
        yield
        return
    gpu = ARCHITECTURES[_asked_for or DEFAULT]
    with contextlib.ExitStack() as stack:
        stack.enter_context(_DriverWatcher(gpu))
        for name, answer in _answers(gpu).items():
            stack.enter_context(replaced(torch.cuda, name, answer))
        if gpu.gfx:
            stack.enter_context(replaced(torch.version, "hip", _HIP))
        if as_cuda:
            stack.enter_context(replaced(torch.Tensor, "is_cuda", property(lambda _: True)))
        stack.enter_context(_on_the_cpu())
        yield


def _on_the_cpu() -> Any:
    """A mode of torch in which the device "cuda" is the CPU, since many files make a tensor when they are imported."""
    import torch
    from torch.overrides import TorchFunctionMode

    def there(value: Any) -> Any:
        gpu = isinstance(value, (str, torch.device)) and str(value).partition(":")[0] == "cuda"
        return torch.device("cpu") if gpu else value

    class Mode(TorchFunctionMode):
        def __torch_function__(self, func: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is torch.Tensor.cuda:
                return args[0]
            named = {name: there(value) for name, value in (kwargs or {}).items()}
            return func(*map(there, args), **named)

    return Mode()


class _DriverWatcher:
    """A finder of modules that finds none: it replaces Triton's driver once that is imported, before a target asks it.

    Triton imports further modules behind its driver, and each passes by here.
    """

    def __init__(self, gpu: Architecture) -> None:
        self._gpu = gpu
        self._driver: Any = None
        self._before: dict[str, Any] = {}

    def find_spec(self, *_: Any) -> None:
        """Finds nothing."""
        module: Any = sys.modules.get("triton.runtime.driver")
        if self._driver is None and hasattr(module, "driver") and not module.__spec__._initializing:
            self._driver, self._before = module.driver, dict(vars(module.driver))
            self._driver.set_active(_driver(self._gpu))

    def __enter__(self) -> None:
        sys.meta_path.insert(0, self)
        self.find_spec()

    def __exit__(self, *_: object) -> None:
        sys.meta_path.remove(self)
        if self._driver is not None:
            vars(self._driver).update(self._before)


def _driver(gpu: Architecture) -> Any:
    """`triton.runtime.driver.active` as it is used outside launches."""
    import torch
    from triton.backends.compiler import GPUTarget

    properties = {
        "max_shared_mem": gpu.shared_bytes,
        "max_num_regs": _REGISTERS,
        "multiprocessor_count": gpu.processors,
        "warpSize": gpu.warp,
    }
    target = GPUTarget("hip" if gpu.gfx else "cuda", gpu.triton_arch, gpu.warp)
    return SimpleNamespace(
        utils=SimpleNamespace(get_device_properties=lambda *_: properties),
        get_current_target=lambda: target,
        get_current_device=lambda: 0,
        get_active_torch_device=lambda: torch.device("cpu"),
    )


def _answers(gpu: Architecture) -> dict[str, Any]:
    """Functions of torch.cuda, by name."""
    properties = SimpleNamespace(
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
    return {
        "get_device_capability": lambda device=None: gpu.capability,  # noqa: ARG005
        "get_device_properties": lambda device=None: properties,  # noqa: ARG005
        "get_device_name": lambda device=None: gpu.name,  # noqa: ARG005
        "current_device": lambda: 0,
        "set_device": lambda device: None,  # noqa: ARG005
        "synchronize": lambda device=None: None,  # noqa: ARG005
        "device": contextlib.nullcontext,
        "device_of": contextlib.nullcontext,
    }
