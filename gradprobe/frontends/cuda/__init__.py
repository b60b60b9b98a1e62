"""CUDA C++: what is known of it outside this folder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .watch import BLOCK, THREAD, WARP, CudaFinding, Recorded, Recording, Watch, recorded, watched

if TYPE_CHECKING:
    from .module import Kernel, Module, load
    from .source import KernelEntry

__all__ = [
    "BLOCK", "THREAD", "WARP", "CudaFinding", "Kernel", "KernelEntry", "Module", "Recorded", "Recording", "Watch",
    "load", "recorded", "watched",
]  # fmt: skip


def __getattr__(name: str) -> Any:  # every run is watched, and few load a source
    if name not in ("Kernel", "KernelEntry", "Module", "load"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import module

    return getattr(module, name)
