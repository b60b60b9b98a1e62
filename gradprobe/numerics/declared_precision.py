"""What a kernel declares of its arithmetic, and what roundings and long sums of it cost, single or correlated."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..model.intermediates import lookup
from ..model.memory_finding import DTYPE, MemoryFinding
from ..model.number import LAMBDA
from ..runtime.run import Trace

# float32 arithmetic, a half unit in the last place.
U32 = 2.0**-24
# exp and log of a GPU: two units in the last place of float32 (CUDA programming guide).
U_FUNCTION = 2.0**-22
# Tensor cores add with truncation, a whole unit in the last place instead of half of one (Fasi, Higham, Mikaitis and
# Pranesh, 2021).
U_TENSOR_CORE = 2.0**-23
# Of a value's companion, where all roundings to 16 bits are exact; derived in `exact`.
EXACT = 2.0**-18
EXACT_INPUTS = ", exact inputs"
# The smallest normal float32: below it GPUs may flush to zero.
TINY = 2.0**-126

UNITS = {
    "ieee": 0.0,
    "bf16x6": 2.0**-22,
    "tf32x3": 2.0**-20,
    "bf16x3": 2.0**-16,
    "tf32": 2.0**-10,
}
"""By way of multiplying float32: the relative error of an operand. One in two or three parts lacks what the last part
truncates, and a product of two lacks the least of their products."""

ROUNDED = ("S", "P", "dP", "dS")
"""What kernels round to 16 bits beside the operands of their second dots."""

Tensors = Mapping[str, Tensor]
"""By name of an intermediate or an input."""
Narrow = Callable[[Tensor], Tensor]
"""Rounds to fewer bits."""


@dataclass(frozen=True)
class Precision:
    """What a kernel declares of its arithmetic."""

    name: str
    operand: float
    """Relative error of an operand of the first dots (q, k, v, do) as the multiplier sees it: of float32, one of UNITS,
    else 0. It truncates, so errors share a sign."""
    matrix: float
    """Relative error of P and dS when they are rounded for the second dots."""
    floor: float
    """Absolute error of that rounding among subnormal numbers, which GPUs may flush to zero in float32 and bfloat16."""
    accumulate: float
    """Relative error of one addition inside a dot."""
    exact: bool = False
    """Whether the values are meant to leave nothing to round to 16 bits: where they do so, `EXACT` is allowed."""
    rounds: frozenset[str] = frozenset()
    """Which of ROUNDED go through the dtype of q besides, as often as kernels do that."""
    tile: int = 0
    """Terms between two roundings of a sum kept in the dtype of q; 0 for sums in float32."""

    def roundings(self, name: str) -> float:
        """The relative error of one rounding of an intermediate that the contract leaves in float32, or 0."""
        return self.matrix if name in self.rounds else 0.0

    @property
    def coarser(self) -> Precision:
        """The coarsest arithmetic that a kernel within this contract's budget may turn out to have.

        Bounds are LAMBDA roundings in quadrature, so what rounds LAMBDA times as coarsely seldom leaves them where many
        terms are added; and right kernels scale q or k and round it once more before the scores.
        """
        parts = ("matrix", "floor", "accumulate")
        coarse = {name: LAMBDA * getattr(self, name) for name in parts}
        operand = max(self.operand, self.matrix)
        return replace(self, name=f"coarser than {self.name}", operand=operand, **coarse)


@dataclass(frozen=True)
class CoarserArithmetic:
    """What a target proves to do, and its contract does not allow."""

    name: str
    """Of what is coarser."""
    how: str
    dtype: str = ""
    by: Any = None
    """The Model of a sum, or the Operand of scores."""

    @property
    def sentence(self) -> str:
        return f"coarser than its contract: {self.how}"


def precision_of(dtype: str, dots: str) -> Precision:
    """The contract that a kernel of a dtype is held to: P, dS and O rounded to the inputs' dtype, sums in float32.

    Args:
        dtype: float32, float16 or bfloat16, of q, k, v and dO.
        dots: one of UNITS, which only float32 feels.
    """
    if dtype == "float32":
        unit = UNITS[dots]
        return Precision(
            f"float32, {dots} dots", unit, unit, TINY, U_TENSOR_CORE if unit else U32
        )
    # Unit roundoff; and half the smallest subnormal, or where subnormals may be flushed, the smallest normal number.
    unit, floor = {"float16": (2.0**-11, 2.0**-25), "bfloat16": (2.0**-8, TINY)}[dtype]
    return Precision(f"{dtype}, float32 sums", 0.0, unit, floor, U_TENSOR_CORE)


def growth_of(dtype: str) -> str:
    """From which scores on what rounds them, or an operand of theirs, to a dtype, by u S, moves P by a tenth."""
    tenth = 0.1 / precision_of(dtype, "ieee").matrix
    return f"; its errors grow with the scores: of scores of {tenth:.0f} and more, P is off by a tenth"


def exactly(precision: Precision) -> Precision:
    """The same for dyadic values. float32's own budget is as narrow, and TF32 cuts a P that is just below a number."""
    if not precision.matrix or precision.operand:
        return precision
    return replace(precision, name=precision.name + EXACT_INPUTS, exact=True)


def ordinary(precision: Precision) -> Precision:
    """The same for other values."""
    return replace(precision, name=precision.name.removesuffix(EXACT_INPUTS), exact=False)


def with_roundings(precision: Precision, rounds: Iterable[str], tile: int = 0) -> Precision:
    """The same with more rounded to 16 bits, and sums kept in 16 bits, rounded after each `tile` terms."""
    name = f"{precision.name.partition(',')[0]}, {', '.join(rounds)} rounded"
    name += f", sums rounded every {tile} terms" if tile else ""
    return replace(precision, name=name, rounds=frozenset(rounds), tile=tile)


def long_sum(terms: float) -> float:
    """By how much the roundings of a sum of so many terms exceed one: LAMBDA sqrt(n), and never more than n.

    Times the unit roundoff and the sum of absolute values this bounds the error: the second always, the first for
    roundings that are independent (Higham and Mary, 2019, theorem 2.4).
    """
    return min(terms, LAMBDA * math.sqrt(terms))


def dot_error(
    a: Tensor, b: Tensor, precision: Precision, *, unit: float = 0.0, terms: int | None = None
) -> Tensor:
    """The error of a @ b: operands off by `unit` with a common sign, and float32 (or tensor core) sums.

    Args:
        terms: how many a kernel adds up, where a and b have a part of them and the others are 0.
    """
    error = precision.accumulate * long_sum(terms or a.shape[-1]) * (a.abs() @ b.abs())
    if unit:
        error = error + LAMBDA * unit * (2 * (a**2) @ (b**2)).sqrt() + 2 * unit * (a @ b).abs()
    return error


def output_rounding(expected: Tensor, bound: Tensor, dtype: torch.dtype) -> Tensor:
    """What storing a value in a dtype may cost: its unit roundoff, relative, and half its smallest subnormal.

    The value stored is the one computed, which may be off by `bound`.
    """
    info = torch.finfo(dtype)
    return (expected.abs() + bound) * (info.eps / 2) + info.tiny * info.eps / 2


def stored(actual: Tensor, expected: Tensor, bound: Tensor, dtype: torch.dtype) -> Tensor:
    """How far a value that was stored in a dtype may be from the expected one, so that one within `bound` rounds to it.

    That is what `output_rounding` bounds from above, to the bit.
    """
    up, down = ((expected + end).to(dtype).double() for end in (bound, -bound))
    return (up - expected).where(actual >= expected, expected - down).maximum(bound)


def nearest(precision: Precision, matrix: Tensor) -> Tensor:
    """Rounded to the nearest numbers of a contract's 16-bit dtype, in float64."""
    _, exponent = torch.frexp(matrix)
    spacing = torch.ldexp(torch.full_like(matrix, precision.matrix), exponent)
    spacing = spacing.clamp(min=2 * precision.floor)
    return (matrix / spacing).round() * spacing


def truncated(unit: float, tensor: Tensor, *, up: bool = False) -> Tensor:
    """float64 holding float32 values -> the same without the last bits of float32's significand, 13 for TF32's 2^-10.

    Args:
        up: whether half of what is cut is added before, which rounds to nearest, as kernels that convert first do.
    """
    lost = 1 << (23 + round(math.log2(unit)))
    added = lost // 2 if up else 0
    return (
        ((tensor.float().view(torch.int32) + added) & ~(lost - 1)).view(torch.float32).double()
    )


def of_dtypes(trace: Trace, values: Tensors) -> Iterator[MemoryFinding]:
    """Results whose dtype cannot hold their numbers."""
    for name, tensor in trace.values.items():
        row = lookup(name)
        given = values.get(like := row.gradient_of or row.like if row else "")
        if given is None or trace.sources[name] != "exported":
            continue
        if torch.promote_types(tensor.dtype, given.dtype) != tensor.dtype:
            came, due = (str(of.dtype).removeprefix("torch.") for of in (tensor, given))
            lost = f"which does not hold the numbers of {due}, the dtype of {like}"
            sentence = f"{name} came as {came}, {lost}"
            yield MemoryFinding(DTYPE, name, sentence, actual=came, expected=due)
