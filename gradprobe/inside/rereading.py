"""dO read through another tensor's strides: the reading that gives the very dV that came, if there is one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..cases.case import Case
from ..judging.compare import tile_size
from ..reference import Attention, evaluate, tiles

if TYPE_CHECKING:
    from torch import Tensor

# Sets of axes whose strides kernels are known to mix up: one, those of a program's offset, or all.
_AXES = ("b", "h", "m", "d", "bh", "bhm", "md", "bhmd")
# What one reading may leave of dV, as a share of its squares: a 16-bit rounding leaves 2^-16 at most.
_UNEXPLAINED = 2.0**-10


@dataclass(frozen=True)
class Rereading:
    """One tensor's strides taken for dO's."""

    other: str
    axes: str

    @property
    def words(self) -> str:
        named = {"b": "batch", "h": "head", "m": "row", "d": "dim"}
        strides = "every stride" if len(self.axes) == 4 else f"{' and '.join(named[axis] for axis in self.axes)} stride"
        return f"dO is read with {self.other}'s {strides}: so read it gives the dV that came"


def reread_do(case: Case, x: Attention, dv: Tensor, tensors: Mapping[str, Tensor]) -> Rereading | None:
    """The rereading of dO that explains a wrong dV; None where none does.

    Args:
        x: the problem, with the values meant.
        dv: what the target gave.
        tensors: the inputs as they lay in memory, guard bands around them.
    """
    readings = dict(_readings(tensors))
    predicted = {reading: dv.double() * 0 for reading in readings}
    heads, rows = tile_size(case)
    for tile in tiles(x, heads=heads, rows=rows):
        pe, kv_heads = evaluate(x, tile)["PE"], x.kv_heads(tile)
        for reading, do in readings.items():
            share = pe.mT @ do[tile.batch, tile.heads, tile.rows].double()
            predicted[reading][tile.batch].index_add_(0, kv_heads, share)
    for reading, expected in predicted.items():
        error = float(((dv.double() - expected) ** 2).sum() / (expected**2).sum().clamp(min=1e-300))
        if error <= _UNEXPLAINED:
            return reading
    return None


def _readings(tensors: Mapping[str, Tensor]) -> Iterator[tuple[Rereading, Tensor]]:
    do = tensors["do"]
    for name, other in tensors.items():
        if name == "do" or other.dim() != 4 or not other.is_floating_point():
            continue
        for axes in _AXES:
            pairs = zip("bhmd", do.stride(), other.stride(), strict=True)
            strides = [theirs if axis in axes else own for axis, own, theirs in pairs]
            reach = do.storage_offset() + sum((n - 1) * stride for n, stride in zip(do.shape, strides, strict=True))
            if tuple(strides) != do.stride() and reach < do.untyped_storage().nbytes() // do.element_size():
                yield Rereading(name, axes), do.as_strided(do.shape, strides)
