"""gradprobe: runs an attention backward kernel beside a float64 reference and points at the first wrong number."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing is not imported: that takes longer than all that a command does first
    from typing import Any

__version__ = "0.1.0"


def capture(function: Any = None, *, folder: str = ".gradprobe/captures", keep: int = 16, order: str = "bhld") -> Any:
    """Keeps the real inputs and dO of an attention function, for `gradprobe check TARGET --inputs FILE`.

    `capture(function)` returns a function to call in its place, which does the same and keeps q, k, v, bias, the other
    inputs and the incoming dO, once for each shape and layout, as files in `folder`. It may decorate:
    `@gradprobe.capture` or `@gradprobe.capture(keep=4)`. `with gradprobe.capture("package.module:function"):` replaces
    the function in its module until the block ends. Values, gradients and random numbers of the program stay what they
    are.

    Args:
        function: a function, or the words "module:function".
        folder: where the files go.
        keep: how many sets of inputs at most.
        order: the function's order of axes, "bhld" or "blhd". What is kept is [B, H, L, D], as the tensors lay; the
            target that is checked with it takes that order, so for a function of the other one it is an adapter.

    Raises:
        UsageFailure: it is neither a function nor the words of one, or an option has no such value.
    """
    from pathlib import Path

    from .commands.record.capturing import capture as start
    from .commands.record.watch import Keeping

    return start(function, Keeping(Path(folder), keep, order))
