"""S2: a tensor is addressed as if it lay otherwise than it does."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from ..model.intermediates import title
from .hypothesis import Hypothesis, Observed
from .memory import axes_of, contiguous_strides, misreading, readable, through


def hypotheses(seen: Observed) -> Iterator[Hypothesis]:
    """Every tensor that kernels read, taken for contiguous, for [B, L, H, D], or for dense in its last axes."""
    for name, tensor in readable(seen).items():
        tried = {tuple(tensor.stride())}
        for words, strides in _assumed(tensor, axes_of(name, seen)):
            if strides not in tried:
                tried.add(strides)
                read, summary = through(tensor, strides), f"{title(name)} is addressed {words}, and does not lie so"
                fix = f"take every stride of {title(name)} from the tensor, or refuse other layouts in the wrapper"
                yield misreading(seen, name, read, f"layout/{name}", "S2", summary, fix=fix)


def _assumed(tensor: Tensor, axes: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    shape, own = tuple(tensor.shape), tuple(tensor.stride())
    dense = contiguous_strides(shape)
    yield "as if it were contiguous", dense
    if len(shape) > 1:
        yield "as if its last stride were 1", (*own[:-1], 1)
        yield "as if its rows were contiguous", (*own[:-2], *dense[-2:])
    if len(shape) == 4:
        batch, heads, rows, dim = shape
        yield "as [B, L, H, D]", (rows * heads * dim, dim, heads * dim, 1)
        yield "as if each of its batches were contiguous", (own[0], *dense[1:])
        yield "as if each of its heads were contiguous", (*own[:2], *dense[2:])
    if axes.startswith("bh"):
        yield "as if batches and heads lay one behind the other", (own[1] * shape[1], *own[1:])
        yield "as if batches lay one behind the other, heads within rows", (dense[0], *own[1:])
