"""What became of the errors of an entry: which grew beyond what draws alone may come to."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...model.failures import UsageFailure
from .entry import Entry

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
    limit = (
        _quantile(ALARMS / OTHER_LAWS / comparisons, 2 * count - 2)
        * spread
        * math.sqrt(2 / count)
    )
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


FIGURES = ("rms", "worst")


@dataclass(frozen=True)
class BaselineCell:
    """One intermediate in one layout."""

    layout: str
    name: str
    rms: Growth
    worst: Growth

    @property
    def verdict(self) -> str:
        """Grown where either figure is; else improved where either is."""
        verdicts = {self.rms.verdict, self.worst.verdict}
        return next((verdict for verdict in (GROWN, IMPROVED) if verdict in verdicts), SAME)


@dataclass(frozen=True)
class Changes:
    """What became of the errors of one entry."""

    before: Entry
    after: Entry
    cells: tuple[BaselineCell, ...]
    gone: tuple[tuple[str, str], ...]
    """(layout, intermediate) that was saved and is not there any more; the intermediate "" for a whole layout."""
    new: tuple[tuple[str, str], ...]
    coarser: tuple[str, ...]
    """What is now rounded more coarsely than its contract allows, and was not before."""

    @property
    def grown(self) -> list[BaselineCell]:
        return [cell for cell in self.cells if cell.verdict == GROWN]

    @property
    def fails(self) -> bool:
        return bool(self.grown or self.gone or self.coarser)

    @property
    def notes(self) -> list[str]:
        """What else differs, so that errors may have changed for other reasons than the kernel."""
        old, now = self.before.environment, self.after.environment
        changed = [
            f"{name} {old.get(name)} -> {now[name]}" for name in now if old.get(name) != now[name]
        ]
        notes = (
            [f"the environment has changed, and the noise may have: {', '.join(changed)}"]
            if changed
            else []
        )
        kernels = [
            name
            for name, digest in self.after.kernels.items()
            if self.before.kernels.get(name) != digest
        ]
        return notes + ([f"its kernels' file changed: {', '.join(kernels)}"] if kernels else [])


def compared(entry: Entry) -> int:
    """How many figures of an entry are compared."""
    return len(FIGURES) * len(entry.cells)


def changes(before: Entry, after: Entry, comparisons: int) -> Changes:
    """What became of the errors of an entry.

    Args:
        comparisons: how many figures are compared in all, in this entry and in others beside it.
    """
    now = set(after.cells)
    return Changes(
        before=before,
        after=after,
        cells=tuple(_cell(before, after, at, comparisons) for at in before.cells if at in now),
        gone=_without(before, after),
        new=_without(after, before),
        coarser=tuple(name for name in after.coarser if name not in before.coarser),
    )


def _cell(before: Entry, after: Entry, at: tuple[str, str], comparisons: int) -> BaselineCell:
    old, now = (entry.errors[at[0]][at[1]] for entry in (before, after))
    rms, worst = (
        growth(getattr(old, figure), getattr(now, figure), comparisons) for figure in FIGURES
    )
    return BaselineCell(*at, rms, worst)


def _without(entry: Entry, other: Entry) -> tuple[tuple[str, str], ...]:
    """The cells of an entry that another lacks; a layout that is missing as a whole counts once."""
    lacking = [
        at if at[0] in other.errors else (at[0], "")
        for at in entry.cells
        if at not in set(other.cells)
    ]
    return tuple(dict.fromkeys(lacking))


def refuse_other(before: Entry, ran: str, case: Mapping[str, object]) -> None:
    """Refuses a comparison with an entry whose errors are not comparable.

    Raises:
        UsageFailure: the target ran on something else, or its case resolves to another one.
    """
    if ran != before.ran:
        raise UsageFailure(
            f"baseline of {before.command_words}: it was saved by {before.ran}, and {ran} has other errors",
            "run it where it was saved (--device cpu runs Triton's interpreter), or keep a --baseline for each",
        )
    names = [name for name in {**before.case, **case} if before.case.get(name) != case.get(name)]
    if names:
        what = ", ".join(f"{name} {before.case.get(name)} -> {case.get(name)}" for name in names)
        raise UsageFailure(
            f"baseline of {before.command_words}: its case is another one now ({what})",
            "take its entry out of the file, and check again",
        )
