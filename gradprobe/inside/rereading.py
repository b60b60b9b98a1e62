"""Which misreading of dO or V, by other strides or of another head or batch, gives the gradient that came."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..cases.case import Case
from ..judging.compare import tiles_of
from ..reference import Attention, evaluate
from ..reference.attention import add_tile

if TYPE_CHECKING:
    from torch import Tensor

# Sets of axes whose strides kernels are known to mix up: one, those of a program's offset, or all.
_AXES = ("b", "h", "m", "d", "bh", "bhm", "md", "bhmd")
# Above so many scores no reading is tried, each of which takes two evaluations.
_MOST_SCORES = 1 << 22
# What one reading may leave of a gradient, as a share of its squares: a 16-bit rounding leaves 2^-16 at most.
_UNEXPLAINED = 2.0**-10


@dataclass(frozen=True)
class Rereading:
    """One way to misread a tensor."""

    tensor: str
    how: str
    """After "is read": "with q's head stride", "of head 0 in every head"."""
    gives: str
    """The gradient that it explains."""

    @property
    def words(self) -> str:
        name = "dO" if self.tensor == "do" else self.tensor
        return f"{name} is read {self.how}: so read it gives the {self.gives} that came"


def reread_do(case: Case, x: Attention, dv: Tensor, tensors: Mapping[str, Tensor]) -> Rereading | None:
    """The misreading of dO that explains a wrong dV; None where none does.

    Args:
        x: the problem, with the values meant.
        dv: what the target gave.
        tensors: the inputs as they lay in memory, guard bands around them.
    """
    readings = dict(_readings("do", "dV", tensors)) | dict(_of_other_heads(case, x.do))
    predicted = {reading: dv.double() * 0 for reading in readings}
    for tile in tiles_of(case, x):
        pe, kv_heads = evaluate(x, tile)["PE"], x.kv_heads(tile)
        for reading, do in readings.items():
            share = pe.mT @ do[tile.batch, tile.heads, tile.rows].double()
            predicted[reading][tile.batch].index_add_(0, kv_heads, share)
    return next((reading for reading, expected in predicted.items() if _explains(expected, dv)), None)


def reread_for_dp(
    case: Case, x: Attention, name: str, gradient: Tensor, tensors: Mapping[str, Tensor]
) -> Rereading | None:
    """The misreading of dO or V in dP that explains a wrong dQ or dK; None where none does, or the case is too large.

    Args:
        name: "dQ" or "dK".
        gradient: what the target gave.
        The others are those of `reread_do`.
    """
    if case.batch * case.heads * case.seqlen_q * case.seqlen_k > _MOST_SCORES:
        return None
    for tensor in ("do", "v"):
        for reading, read in _readings(tensor, name, tensors):
            misread = replace(x, do=read.double()) if tensor == "do" else replace(x, v=read.double())
            if _explains(_of_dp(case, x, misread, name), gradient):
                return reading
    return None


def _of_dp(case: Case, x: Attention, misread: Attention, name: str) -> Tensor:
    """dQ or dK of a problem with the dP of another."""
    results = {name: (x.q if name == "dQ" else x.k) * 0}
    for tile in tiles_of(case, x):
        add_tile(x, results, tile, evaluate(x, tile, {"dP": evaluate(misread, tile)["dP"]}))
    return results[name]


def _explains(expected: Tensor, gradient: Tensor) -> bool:
    error = ((gradient.double() - expected) ** 2).sum() / (expected**2).sum().clamp(min=1e-300)
    return bool(error <= _UNEXPLAINED)


def _readings(tensor: str, gives: str, tensors: Mapping[str, Tensor]) -> Iterator[tuple[Rereading, Tensor]]:
    """Every other reading of a tensor, each once."""
    own, tried = tensors[tensor], {tensors[tensor].stride()}
    for name, other in tensors.items():
        if name == tensor or other.dim() != 4 or not other.is_floating_point():
            continue
        for axes in _AXES:
            pairs = zip("bhmd", own.stride(), other.stride(), strict=True)
            strides = tuple(theirs if axis in axes else mine for axis, mine, theirs in pairs)
            reach = own.storage_offset() + sum((n - 1) * stride for n, stride in zip(own.shape, strides, strict=True))
            if strides not in tried and reach < own.untyped_storage().nbytes() // own.element_size():
                tried.add(strides)
                yield Rereading(tensor, _in_words(name, axes), gives), own.as_strided(own.shape, strides)


def _in_words(other: str, axes: str) -> str:
    named = {"b": "batch", "h": "head", "m": "row", "d": "dim"}
    strides = "every stride" if len(axes) == 4 else f"{' and '.join(named[axis] for axis in axes)} stride"
    return f"with {other}'s {strides}"


def _of_other_heads(case: Case, do: Tensor) -> Iterator[tuple[Rereading, Tensor]]:
    """dO of the head or batch that a wrong index leads to."""
    import torch

    heads, kv_heads = torch.arange(case.heads, device=do.device), case.kv_heads
    maps = {"of head 0 in every head": heads * 0}
    if 1 < kv_heads < case.heads:
        maps["of head h // group, its key head's number"] = heads // (case.heads // kv_heads)
        maps["of head h % kv_heads"] = heads % kv_heads
    for how, index in maps.items():
        if case.heads > 1:
            yield Rereading("do", how, "dV"), do[:, index]
    if case.batch > 1:
        yield Rereading("do", "of batch 0 in every batch", "dV"), do[:1].expand_as(do)
