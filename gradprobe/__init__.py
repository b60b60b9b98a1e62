"""gradprobe: runs an attention backward kernel beside a float64 reference and points at the first wrong number."""

from typing import Any

__version__ = "0.1.0"


def capture(function: Any = None, *, folder: str = ".gradprobe/captures", keep: int = 16) -> Any:
    """Keeps the real inputs and dO of an attention function, for `gradprobe check TARGET --inputs FILE`.

    `capture(function)` returns a function to call in its place, which does the same and keeps q, k, v, bias, the other
    inputs and the incoming dO, once for each shape and layout, as files in `folder`. It may decorate:
    `@gradprobe.capture` or `@gradprobe.capture(keep=4)`. `with gradprobe.capture("package.module:function"):` replaces
    the function in its module until the block ends. Values, gradients and random numbers of the program stay what they
    are. The tensors are taken for [B, H, L, D]; a function of another order needs an adapter.

    Args:
        function: a function, or the words "module:function".
        folder: where the files go.
        keep: how many sets of inputs at most.
    """
    from .capturing import capture as start

    return start(function, folder=folder, keep=keep)
