"""Whether a figure grew by more than it varies from draw to draw."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

GROWN, IMPROVED, SAME = "grown", "improved", "same"

# The share of comparisons of two files that may call grown what is not, all their figures together.
ALARMS = 1e-4
# The quantile holds for logarithms that are normal. Simulated for other laws (those of root mean squares and of maxima,
# a Laplace, an exponential and a uniform one) the rate was up to 9 times as high, for the uniform one.
OTHER_LAWS = 10.0
# Below this a figure counts as this: an error that grew a hundredfold from here would be a hundredth of its budget.
FLOOR = 1e-4
# What one more rounding adds in quadrature that is half as large as all others together: less is no rounding more.
LEAST = math.sqrt(1 + 0.5**2)
# Draws a side. Of fewer the spread is known too badly: with 66 figures compared, t may come to 67 over three draws and
# to 25 over four.
FEWEST = 4


@dataclass(frozen=True)
class Growth:
    """How one figure changed."""

    factor: float
    """After over before: the ratio of the geometric means over the draws."""
    noise: float
    """The factor that draws alone may come to."""

    @property
    def verdict(self) -> str:
        if not self.factor <= self.noise:
            return GROWN
        return IMPROVED if self.factor < 1 / self.noise else SAME


def growth(before: Sequence[float], after: Sequence[float], comparisons: int) -> Growth:
    """How a figure changed between two sets of as many draws, at least `FEWEST`.

    Errors vary by factors, so their logarithms are compared: with n draws a side and a pooled standard deviation s of
    the logarithm, the difference of two means of one law is s * sqrt(2 / n) times Student's t of 2n - 2 degrees of
    freedom. It is allowed the quantile of t that, over all `comparisons`, is exceeded in a share `ALARMS` of cases.
    """
    count = len(before)
    means, squares = zip(*(_moments(figures) for figures in (before, after)), strict=True)
    spread = math.sqrt(sum(squares) / (2 * count - 2))
    limit = _quantile(ALARMS / OTHER_LAWS / comparisons, 2 * count - 2) * spread * math.sqrt(2 / count)
    return Growth(_exp(means[1] - means[0]), max(_exp(limit), LEAST))


def _moments(figures: Sequence[float]) -> tuple[float, float]:
    """The mean of the logarithms, and the sum of their squared deviations."""
    logs = [math.log(max(figure, FLOOR)) for figure in figures]
    mean = sum(logs) / len(logs)
    return mean, sum((log - mean) ** 2 for log in logs)


def _exp(number: float) -> float:
    return math.exp(min(number, 700.0))


@functools.cache
def _quantile(share: float, freedom: int) -> float:
    """Student's t that is exceeded with a probability; by bisection."""
    low, high = 0.0, 1.0
    while _exceeding(high, freedom) > share:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _exceeding(middle, freedom) > share else (low, middle)
    return high


def _exceeding(t: float, freedom: int) -> float:
    """The probability that Student's t of an even number of degrees of freedom exceeds t: a finite sum."""
    angle = math.atan(t / math.sqrt(freedom))
    term = total = 1.0
    for k in range(1, freedom // 2):
        term *= math.cos(angle) ** 2 * (2 * k - 1) / (2 * k)
        total += term
    return (1 - math.sin(angle) * total) / 2
