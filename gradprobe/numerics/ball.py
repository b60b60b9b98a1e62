"""Ball: a computed value with what float32 may have put it off by, through products and roundings to fewer bits.

Where the value is near a number at which a rounding turns, both sides of it are within the radius. So a way to compute
is not refused for the noise of float32, and whatever else differs is not this way.
"""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from ..model.kernel_contract import IEEE, TF32
from ..model.number import LAMBDA
from .declared_precision import Narrow, truncated

# Of one sum of products, over the root of its length times the root of its terms' squares: a tensor core's last bit,
# twice.
_ROUNDING = 2.0**-22


class Ball(NamedTuple):
    """Values and radii, float64, of one shape."""

    value: Tensor
    radius: Tensor

    def __mul__(self, other: Tensor | float) -> Ball:  # type: ignore[override]
        """Times what is exact."""
        return Ball(self.value * other, (self.radius * other).abs())

    def plus(self, other: Ball) -> Ball:
        return Ball(self.value + other.value, self.radius + other.radius)

    def minus(self, other: Ball) -> Ball:
        return Ball(self.value - other.value, self.radius + other.radius)

    def times(self, other: Ball) -> Ball:
        radius = self.value.abs() * other.radius + self.radius * other.value.abs() + self.radius * other.radius
        return Ball(self.value * other.value, radius)

    def exp(self, unit: float) -> Ball:
        """By a function that is good to a unit, relative."""
        value = self.value.exp()
        return Ball(value, value * ((self.radius + unit).expm1()))

    @property
    def mT(self) -> Ball:  # noqa: N802 - as of a tensor
        return Ball(self.value.mT, self.radius.mT)


def exact(value: Tensor) -> Ball:
    """What is known as it is."""
    return Ball(value, torch.zeros_like(value))


def dot(a: Ball, b: Tensor) -> Ball:
    """a @ b, summed in float32; b exact. What the terms are off by has either sign: it adds up in quadrature."""
    noise = _ROUNDING * math.sqrt(b.shape[-2]) * (a.value.square() @ b.square()).sqrt()
    off = (LAMBDA * (a.radius.square() @ b.square()).sqrt()).minimum(a.radius @ b.abs())
    return Ball(a.value @ b, off + noise)


def row_sum(addends: Ball) -> Ball:
    """[..., 1] the sum along the last axis."""
    return dot(addends, torch.ones_like(addends.value[..., :1, :]).mT)


def narrow(word: str, tensor: Tensor) -> Tensor:
    """Numbers as they are multiplied, float64."""
    return _NARROW[word](tensor) if word in _NARROW else tensor.to(getattr(torch, word)).double()


def narrowed(word: str, ball: Ball) -> Ball:
    """The same of a ball: its radius holds what either end rounds to."""
    low, value, high = (
        narrow(word, ball.value + end) for end in (-ball.radius, torch.zeros_like(ball.radius), ball.radius)
    )
    return Ball(value, (high - value).maximum(value - low).nan_to_num(math.inf))


_NARROW: dict[str, Narrow] = {
    IEEE: lambda tensor: tensor,
    f"{TF32}, cut": partial(truncated, 2.0**-10),
    f"{TF32}, rounded": partial(truncated, 2.0**-10, up=True),
}
