"""The built-in targets."""

import ctypes
from dataclasses import dataclass
from pathlib import Path

_FORWARD = ("O", "dQ", "dK", "dV")
_ALL = ("LSE", "P", "O", "dP", "delta", "dS", "dQ", "dK", "dV", "dBias")
_BIASED = (*_FORWARD, "dBias")
# What stands before the colon of a word, where it is a file.
FILES = (".py", ".cu")


@dataclass(frozen=True)
class Builtin:
    name: str
    spec: str
    summary: str
    exposes: tuple[str, ...]
    cuda: bool = False


_ADAPTERS = "gradprobe.targets.adapters"
_KERNELS = "gradprobe.kernels.triton"
_SDPA = f"{_ADAPTERS}.sdpa"
_TABLE = (
    Builtin("lazy", f"{_KERNELS}.lazy:lazy_intermediates", "Lazy attention in Triton", (*_ALL, "dTau")),
    Builtin("flash", f"{_KERNELS}.flash:flash_intermediates", "FlashAttention in Triton", (*_ALL, "dSink")),
    Builtin("lazy-cuda", f"{_ADAPTERS}.cuda_kernels:lazy_cuda", "Lazy attention in CUDA C++", (*_ALL, "dTau")),
    Builtin("flash-cuda", f"{_ADAPTERS}.cuda_kernels:flash_cuda", "FlashAttention in CUDA C++", _ALL[:-1]),
    Builtin("sdpa", f"{_SDPA}:sdpa", "PyTorch's SDPA, the kernel that it chooses", _BIASED),
    Builtin("sdpa-math", f"{_SDPA}:sdpa_math", "PyTorch's SDPA of plain operations", _BIASED),
    Builtin("sdpa-flash", f"{_SDPA}:sdpa_flash", "PyTorch's SDPA by FlashAttention", _FORWARD),
    Builtin("sdpa-efficient", f"{_SDPA}:sdpa_efficient", "PyTorch's SDPA, memory-efficient kernel", _BIASED, cuda=True),
    Builtin("sdpa-cudnn", f"{_SDPA}:sdpa_cudnn", "PyTorch's SDPA by cuDNN", _FORWARD, cuda=True),
)  # fmt: skip
BUILTINS = {row.name: row for row in _TABLE}


def has_driver() -> bool:
    """NVIDIA's, or AMD's."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return Path("/dev/kfd").exists()
    return True
