"""A folder for each language that targets are written in: nothing else of it is known elsewhere than `interface`."""

from __future__ import annotations

from .interface import Statements

__all__ = ["Statements", "source"]


def source(file: str) -> Statements:
    """The statements of a file, by the language that it is written in."""
    if file.endswith(".py"):
        from .python.statements import PythonStatements

        return PythonStatements(file)
    from .cuda.cuda_syntax import CudaStatements

    return CudaStatements(file)
