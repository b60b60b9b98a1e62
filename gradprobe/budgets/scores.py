"""What scores may err by: the dot, softcap's tanh, and what is added before the exponential."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from ..reference import Attention, Tile
from ..reference.softmax import distance
from .precision import U32, U_FUNCTION, Precision, dot_error

if TYPE_CHECKING:
    from torch import Tensor

# tanh of a GPU's special function unit (PTX ISA, tanh.approx.f32), which FlashAttention's softcap uses.
U_TANH = 2.0**-11


def score_error(x: Attention, tile: Tile, values: Mapping[str, Tensor], precision: Precision) -> Tensor:
    """[h, m, N] the bound of each score's error, 0 where no key is seen.

    The scale, the unit of the logarithm and softcap's factor round a score once each. Each addition rounds the sum so
    far; before it, the unit of the logarithm rounds a bias, and that and the product with the distance round alibi.
    """
    q, k, _, _ = x.tensors(tile)
    raw = x.scale * q @ k.mT
    error = abs(x.scale) * dot_error(q, k.mT, precision, unit=precision.operand) + 3 * U32 * raw.abs()
    so_far = raw.abs()
    if x.softcap is not None:
        # By way of exp (2 sigmoid(2 z) - 1 is common) tanh errs by two units in the last place of 1, not of itself.
        so_far = x.softcap * (raw / x.softcap).tanh().abs()
        error = error + x.softcap * U_FUNCTION + hardware_tanh_error(x, tile, precision)
    if x.family == "lazy":  # bias is read by distance: what the reference added is what is no score
        terms = iter([((values["S"].masked_fill(~values["valid"], 0.0) - raw).abs(), 1)] if x.bias is not None else [])
    else:
        terms = _added(x, tile)
    for term, roundings in terms:
        so_far = so_far + term
        error = error + U32 * (so_far + roundings * term)
    return error * values["valid"]


def hardware_tanh_error(x: Attention, tile: Tile, precision: Precision) -> Tensor | float:
    """[h, m, N] what the hardware's tanh may cost a capped score, in kernels whose products are coarser than float32.

    It is at most this, as a single rounding is, so in quadrature it counts LAMBDA times.
    """
    if x.softcap is None or not precision.matrix:
        return 0.0
    q, k, _, _ = x.tensors(tile)
    return U_TANH * x.softcap * (x.scale * q @ k.mT / x.softcap).tanh().abs()


def _added(x: Attention, tile: Tile) -> Iterator[tuple[Tensor, int]]:
    """The size of each term that is added to a softmax score, and how often it was rounded before."""
    if x.bias is not None:
        yield x.bias_part(x.bias, tile).abs().nan_to_num(posinf=0.0), 1
    if x.alibi is not None:
        yield alibi_size(x, tile), 2


def alibi_size(x: Attention, tile: Tile) -> Tensor:
    """[h, m, N] how large what alibi adds may be in a right kernel.

    A row's probabilities do not depend on what all its scores share, so slope * j does as well as slope * distance in a
    causal kernel, and is up to N slopes large.
    """
    assert x.alibi is not None
    return x.alibi[tile.heads, None, None].abs() * distance(x, tile).clamp(min=x.n_key)
