"""Architectures: what a driver, Triton and torch say of a GPU, by the words that `--arch` takes.

Source: the table of compute capabilities in the CUDA C++ Programming Guide, and AMD's hardware specifications of ROCm.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Architecture:
    """One GPU of an architecture, the one that most programs know."""

    name: str
    capability: tuple[int, int]
    """As `torch.cuda.get_device_capability` gives it."""
    shared_bytes: int
    """The most shared memory of a block."""
    processors: int
    """As torch counts them: compute units, of RDNA two in one."""
    gibibytes: int = 80
    gfx: str = ""
    """The name of AMD's architecture; "" of a GPU of NVIDIA's."""
    warp: int = 32


DEFAULT = "sm_90"
ARCHITECTURES = {
    "sm_70": Architecture("Tesla V100-SXM2-32GB", (7, 0), 96 << 10, 80, 32),
    "sm_75": Architecture("Tesla T4", (7, 5), 64 << 10, 40, 15),
    "sm_80": Architecture("NVIDIA A100-SXM4-80GB", (8, 0), 163 << 10, 108),
    "sm_86": Architecture("NVIDIA GeForce RTX 3090", (8, 6), 99 << 10, 82, 24),
    "sm_89": Architecture("NVIDIA GeForce RTX 4090", (8, 9), 99 << 10, 128, 24),
    "sm_90": Architecture("NVIDIA H100", (9, 0), 227 << 10, 132),
    "sm_100": Architecture("NVIDIA B200", (10, 0), 227 << 10, 148, 180),
    "sm_120": Architecture("NVIDIA GeForce RTX 5090", (12, 0), 99 << 10, 170, 32),
    "gfx90a": Architecture("AMD Instinct MI250X", (9, 0), 64 << 10, 110, 64, "gfx90a", 64),
    "gfx942": Architecture("AMD Instinct MI300X", (9, 4), 64 << 10, 304, 192, "gfx942", 64),
    "gfx950": Architecture("AMD Instinct MI355X", (9, 5), 160 << 10, 256, 288, "gfx950", 64),
    "gfx1100": Architecture("AMD Radeon RX 7900 XTX", (11, 0), 64 << 10, 48, 24, "gfx1100"),
    "gfx1201": Architecture("AMD Radeon RX 9070 XT", (12, 0), 64 << 10, 32, 16, "gfx1201"),
}
