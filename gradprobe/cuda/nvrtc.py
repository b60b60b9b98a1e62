"""One launch of a kernel on a GPU, compiled at run time by NVRTC through cuda-core."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .unit import Entry, Sizes
from .watch import Watch


def launch(
    entry: Entry, grid: Sizes, block: Sizes, shared_bytes: int,
    arguments: Sequence[Any], watch: Watch,
) -> None:  # fmt: skip
    """Launches it on torch's current stream."""
    raise NotImplementedError
