"""Standard normal values, each made of a seed and its place alone, with the same bits on every device."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

# The increment and the multipliers of SplitMix64 (Steele, Lea and Flood, 2014), as signed integers.
_INCREMENT = 0x9E3779B97F4A7C15 - (1 << 64)
_MIX = ((30, 0xBF58476D1CE4E5B9 - (1 << 64)), (27, 0x94D049BB133111EB - (1 << 64)))
_LAST = 31
# Quantiles of the normal distribution between which is interpolated. The outermost are those of this probability.
_QUANTILES = 1 << 16
_OUTERMOST = 2.0**-22


def counted(seed: int, first: int, count: int, device: str) -> Tensor:
    """[count] float32 on a device, from the place `first` on, which is even.

    64 bits make two values, by integers and by single float32 operations: what every device computes alike. Their
    distribution is normal to the sixteenth bit, and ends at 5 standard deviations.
    """
    import torch

    places = torch.arange(first // 2, (first + count + 1) // 2, device=device)
    bits = _mixed(places.mul_(_INCREMENT).add_(seed)).view(torch.int32)[:count]
    lower, width = _table(device)
    at = (bits >> 16) & (_QUANTILES - 1)
    return (bits & 0xFFFF).float().mul_(2.0**-16).mul_(width.index_select(0, at)).add_(lower.index_select(0, at))


def _mixed(bits: Tensor) -> Tensor:
    for shift, factor in _MIX:
        bits = _folded(bits, shift).mul_(factor)
    return _folded(bits, _LAST)


def _folded(bits: Tensor, shift: int) -> Tensor:
    """Bits xored with themselves, shifted to the right; from the left come zeros."""
    return bits ^ ((bits >> shift) & ((1 << (64 - shift)) - 1))


@cache
def _table(device: str) -> tuple[Tensor, Tensor]:
    """[2^16] float32 each: the lower end of each interval of equal probability, and its width."""
    import torch

    ends = torch.arange(_QUANTILES + 1, dtype=torch.double) / _QUANTILES
    quantiles = torch.special.ndtri(ends.clamp(_OUTERMOST, 1 - _OUTERMOST))
    lower = quantiles[:-1].float()
    return lower.to(device), (quantiles[1:].float() - lower).to(device)
