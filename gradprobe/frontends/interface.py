"""What is known of a language outside its folder."""

from __future__ import annotations

from collections.abc import Iterable

# What runs kernels. Where a target has kernels of two, the first of these words is the report's.
CUDA_ON_CPU, CUDA, INTERPRETED, COMPILED = "cuda-on-cpu", "cuda", "triton-interpreter", "triton"
BACKENDS = (CUDA_ON_CPU, CUDA, INTERPRETED, COMPILED)
TORCH = "torch"
"""The word of what launches no kernel of its own."""


class Statements:
    """The statements of a file. Each function gives numbers of lines, the last first; none that the language hides."""

    def __init__(self, file: str) -> None:
        self.file = file

    def masks(self, line: int, *, of_accesses: bool = True) -> Iterable[int]:
        """Those that make the condition of the `where` of a line, or the `mask=` of its access."""
        return ()

    def address(self, line: int) -> Iterable[int]:
        """Those that make the address of a line's access: that move its pointer, and the indices they use."""
        return ()

    def aliases(self, line: int) -> Iterable[int]:
        """Those that give what a line uses its value from another name alone, such as a pointer that is not moved."""
        return ()

    def loops(self, line: int) -> Iterable[int]:
        """Those of the loops that a line stands in, or that make what it uses."""
        return ()

    def ends(self, line: int) -> Iterable[int]:
        """Those that make where the innermost loop around a line begins and ends, and the loop's own."""
        return ()

    def grids(self, kernel: str) -> Iterable[int]:
        """Those of a kernel's launches, and those that make what their grids use."""
        return ()

    def launches_with(self, line: int) -> Iterable[int]:
        """Those of the launches, in the same function, that are given what a line of host code assigns."""
        return ()

    def function_at(self, line: int) -> str:
        """The name of the innermost function that holds a line; "" where none is known."""
        return ""
