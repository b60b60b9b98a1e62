"""The GPUs of this machine, by what CUDA_VISIBLE_DEVICES calls them, without a driver or torch being loaded."""

from __future__ import annotations

import os
from pathlib import Path

VISIBLE = "CUDA_VISIBLE_DEVICES"


def gpus(root: Path = Path("/proc/driver/nvidia/gpus")) -> tuple[str, ...]:
    """The name of each GPU that this process may use."""
    visible = os.environ.get(VISIBLE)
    if visible is not None:
        return tuple(name for part in visible.split(",") if (name := part.strip()) and name != "-1")
    count = len(list(root.iterdir())) if root.is_dir() else 0
    return tuple(map(str, range(count)))
