"""Notes which Triton kernels are launched, compiled or interpreted."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def recorded_launches() -> Iterator[list[Any]]:
    """While open, notes the Triton kernels that are launched."""
    launches: list[Any] = []
    kinds = _kernel_types()
    originals = [kind.run for kind in kinds]

    def recording(original: Any) -> Any:
        def run(self: Any, *args: Any, **kwargs: Any) -> Any:
            launches.append(self.fn)
            return original(self, *args, **kwargs)

        return run

    for kind, original in zip(kinds, originals, strict=True):
        kind.run = recording(original)
    try:
        yield launches
    finally:
        for kind, original in zip(kinds, originals, strict=True):
            kind.run = original


def _kernel_types() -> list[Any]:
    """Triton's two kinds of kernel, compiled and interpreted; none where the target never imported Triton."""
    if "triton" not in sys.modules:
        return []
    from triton.runtime.interpreter import InterpretedFunction
    from triton.runtime.jit import JITFunction

    return [JITFunction, InterpretedFunction]
