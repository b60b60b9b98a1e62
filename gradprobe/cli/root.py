"""`gradprobe --version`, and what stands before any command."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Annotated

import typer

from ..runtime.versions import installed


def root(version: Annotated[bool, typer.Option("--version", help="Versions and device, in one line")] = False) -> None:
    if version:
        typer.echo(" ".join(f"{name} {value}" for name, value in {**installed(), "device": _device()}.items()))
        raise typer.Exit


def _device() -> str:
    """The first GPU that NVIDIA's driver tells of, or the processor."""
    from ..targets.builtin import has_driver

    for told in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")) if has_driver() else ():
        for line in told.read_text().splitlines():
            if line.startswith("Model:"):
                return line.removeprefix("Model:").strip()
    return "GPU" if has_driver() else f"cpu ({platform.machine()})"
