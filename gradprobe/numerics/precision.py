"""What a kernel declares of its arithmetic, and what single roundings and long sums of it may cost."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor

# Roundings are at most u each, about u / sqrt(3) in the mean square, so four bounds in quadrature stand near seven
# standard deviations: over 10^9 elements none is expected outside.
LAMBDA = 4.0
# float32 arithmetic, a half unit in the last place.
U32 = 2.0**-24
# exp and log of a GPU's special function unit: two units in the last place of float32 (CUDA programming guide).
U_FUNCTION = 2.0**-22
# Tensor cores add with truncation, a whole unit in the last place instead of half of one (Fasi, Higham, Mikaitis and
# Pranesh, 2021).
U_TENSOR_CORE = 2.0**-23
# The smallest normal float32: below it GPUs may flush to zero.
TINY = 2.0**-126


@dataclass(frozen=True)
class Precision:
    """What a kernel declares of its arithmetic."""

    name: str
    operand: float
    """Relative error of an operand of the first dots (q, k, v, do) as the multiplier sees it: TF32's 2^-10, else 0. It
    truncates, so errors share a sign."""
    matrix: float
    """Relative error of P and dS when they are rounded for the second dots."""
    floor: float
    """Absolute error of that rounding among subnormal numbers, which GPUs may flush to zero in float32 and bfloat16."""
    accumulate: float
    """Relative error of one addition inside a dot."""

    @property
    def coarser(self) -> Precision:
        """The coarsest arithmetic that a kernel within this contract's budget may turn out to have.

        Bounds are LAMBDA roundings in quadrature, so what rounds LAMBDA times as coarsely seldom leaves them where many
        terms are added; and right kernels scale q or k and round it once more before the scores.
        """
        name, operand = f"coarser than {self.name}", max(self.operand, self.matrix)
        matrix, floor, accumulate = (LAMBDA * one for one in (self.matrix, self.floor, self.accumulate))
        return replace(self, name=name, operand=operand, matrix=matrix, floor=floor, accumulate=accumulate)


def precision_of(dtype: str, dots: str) -> Precision:
    """The contract that a kernel of a dtype is held to: P, dS and O rounded to the inputs' dtype, sums in float32.

    Args:
        dtype: float32, float16 or bfloat16, of q, k, v and dO.
        dots: "ieee" or "tf32", which only float32 feels.
    """
    if dtype == "float32":
        tf32 = 2.0**-10 if dots == "tf32" else 0.0
        return Precision(f"float32, {dots} dots", tf32, tf32, TINY, U_TENSOR_CORE if tf32 else U32)
    # Unit roundoff; and half the smallest subnormal, or where subnormals may be flushed, the smallest normal number.
    unit, floor = {"float16": (2.0**-11, 2.0**-25), "bfloat16": (2.0**-8, TINY)}[dtype]
    return Precision(f"{dtype}, float32 sums", 0.0, unit, floor, U_TENSOR_CORE)


def long_sum(terms: float) -> float:
    """By how much the roundings of a sum of so many terms exceed one: LAMBDA sqrt(n), and never more than n.

    Times the unit roundoff and the sum of absolute values this bounds the error: the second always, the first for
    roundings that are independent (Higham and Mary, 2019, theorem 2.4).
    """
    return min(terms, LAMBDA * math.sqrt(terms))


def dot_error(a: Tensor, b: Tensor, precision: Precision, *, unit: float = 0.0) -> Tensor:
    """The error of a @ b: operands off by `unit` with a common sign, and float32 (or tensor core) sums."""
    error = precision.accumulate * long_sum(a.shape[-1]) * (a.abs() @ b.abs())
    if unit:
        error = error + LAMBDA * unit * (2 * (a**2) @ (b**2)).sqrt() + 2 * unit * (a @ b).abs()
    return error


def output_rounding(expected: Tensor, bound: Tensor, dtype: torch.dtype) -> Tensor:
    """What storing a value in a dtype may cost: its unit roundoff, relative, and half its smallest subnormal.

    The value stored is the one computed, which may be off by `bound`.
    """
    import torch

    info = torch.finfo(dtype)
    return (expected.abs() + bound) * (info.eps / 2) + info.tiny * info.eps / 2
