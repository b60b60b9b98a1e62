"""The targets that come with the tool: where each lies, what it exposes, and why it cannot run on this machine."""

from __future__ import annotations

import ctypes
import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path

FORWARD = ("O", "dQ", "dK", "dV")
ALL = ("LSE", "P", "O", "dP", "delta", "dS", "dQ", "dK", "dV", "dBias")


@dataclass(frozen=True)
class Builtin:
    """One row of the table."""

    name: str
    spec: str
    """MODULE:FUNCTION."""
    summary: str
    exposes: tuple[str, ...]
    cuda: bool = False
    """Whether it runs on a CUDA device only."""
    package: str = ""
    """The module of another project without which it cannot be imported."""
    install: str = ""
    """What pip calls that."""

    def missing(self) -> str:
        """Why it cannot run on this machine; "" where it can."""
        if self.package and importlib.util.find_spec(self.package) is None:
            return f"needs the package {self.install} (pip install {self.install})"
        return "needs a CUDA device" if self.cuda and not _has_cuda() else ""


_SDPA = "gradprobe.targets.adapters.sdpa"
_BIASED = (*FORWARD, "dBias")

_TABLE = (
    Builtin("lazy", "gradprobe.kernels.triton.lazy:lazy_intermediates", "Lazy attention in Triton", (*ALL, "dTau")),
    Builtin("flash", "gradprobe.kernels.triton.flash:flash_intermediates", "FlashAttention in Triton", (*ALL, "dSink")),
    Builtin(
        "lazy-cuda", "gradprobe.targets.adapters.lazy_cuda:lazy_cuda", "Lazy attention in CUDA C++", (*ALL, "dTau")
    ),
    Builtin(
        "flash-cuda", "gradprobe.targets.adapters.flash_cuda:flash_cuda", "FlashAttention in CUDA C++", ALL[:-1]
    ),
    Builtin("sdpa", f"{_SDPA}:sdpa", "PyTorch's SDPA, the kernel that it chooses", _BIASED),
    Builtin("sdpa-math", f"{_SDPA}:sdpa_math", "PyTorch's SDPA of plain operations", _BIASED),
    Builtin("sdpa-flash", f"{_SDPA}:sdpa_flash", "PyTorch's SDPA by FlashAttention", FORWARD),
    Builtin("sdpa-efficient", f"{_SDPA}:sdpa_efficient", "PyTorch's SDPA, memory-efficient kernel", _BIASED, cuda=True),
    Builtin("sdpa-cudnn", f"{_SDPA}:sdpa_cudnn", "PyTorch's SDPA by cuDNN", FORWARD, cuda=True),
    Builtin("flex", "gradprobe.targets.adapters.flex:flex", "PyTorch's FlexAttention", ("LSE", *_BIASED)),
    Builtin(
        "flash-attn", "gradprobe.targets.adapters.flash_attn:flash_attn", "FlashAttention 2 of the package flash-attn",
        ("LSE", *FORWARD), cuda=True, package="flash_attn", install="flash-attn",
    ),
    Builtin(
        "xformers", "gradprobe.targets.adapters.xformers:xformers", "xFormers' memory_efficient_attention",
        _BIASED, cuda=True, package="xformers", install="xformers",
    ),
)  # fmt: skip

BUILTINS = {row.name: row for row in _TABLE}


def _has_cuda() -> bool:
    """Whether torch sees a CUDA device; torch is not imported to find that there is no driver."""
    if "torch" not in sys.modules and not has_driver():
        return False
    import torch

    return torch.cuda.is_available()


def has_driver() -> bool:
    """Whether the library is there through which torch reaches NVIDIA's driver, or the device through which AMD's."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return Path("/dev/kfd").exists()
    return True
