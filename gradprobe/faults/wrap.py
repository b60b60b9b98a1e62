"""I64: offsets that wrap around at 2^31."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from .hypothesis import Hypothesis, Seen, entered, title
from .memory import KINDS, axes_of, offsets, readable, reading, whole_storage
from .variant import Variant

if TYPE_CHECKING:
    from torch import Tensor

_LIMIT = 2**31
# Which axes' terms one expression adds up before the sum is added to a pointer.
_GROUPS = ("all", "bh", "b", "h", "m")


def hypotheses(seen: Seen) -> Iterator[Hypothesis]:
    """Every tensor whose offsets pass 2^31, with those of some axes in 32 bits."""
    for name, tensor in readable(seen).items():
        axes = axes_of(name, seen)
        furthest = sum((size - 1) * abs(step) for size, step in zip(tensor.shape, tensor.stride(), strict=True))
        if furthest < _LIMIT:
            continue
        for group in _GROUPS:
            wrapped = axes if group == "all" else "".join(axis for axis in axes if KINDS.get(axis, "?") in group)
            if wrapped:
                yield Hypothesis(
                    f"wrap/{name}", "I64", f"offsets into {title(name)} wrap around at 2^31: they are 32 bits wide",
                    partial(_misread, name, tensor, axes, wrapped), entered(name, seen.case.family),
                    fix="widen the index before it is multiplied: .to(tl.int64)", tensor=name, axes=wrapped,
                )  # fmt: skip


def _misread(name: str, tensor: Tensor, axes: str, wrapped: str, variant: Variant) -> Variant:
    strides = tensor.stride()
    narrow = offsets(tensor.shape, [step if axis in wrapped else 0 for axis, step in zip(axes, strides, strict=True)])
    rest = offsets(tensor.shape, [0 if axis in wrapped else step for axis, step in zip(axes, strides, strict=True)])
    at = (narrow + _LIMIT) % (2 * _LIMIT) - _LIMIT + rest + int(tensor.storage_offset())
    flat = whole_storage(tensor)
    return reading(variant, name, flat[at.to(tensor.device).clamp(0, len(flat) - 1)])
