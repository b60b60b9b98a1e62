"""A folder for each language that targets are written in: nothing else of it is known elsewhere than `interface`."""

from __future__ import annotations

from .interface import Source

__all__ = ["Source", "source"]


def source(file: str) -> Source:
    """The statements of a file, by the language that it is written in."""
    if file.endswith(".py"):
        from .python.statements import PythonSource

        return PythonSource(file)
    from .cuda.statements import CudaSource

    return CudaSource(file)
