"""Which errors of an entry grew beyond what draws alone may come to, on a screen and as JSON."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.text import Text

from ..model.failures import UsageFailure
from ..model.number import plural
from ..render.notation import ASCII, UTF8
from ..render.rows import folded, headed
from .baseline import Entry

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
    count, freedom = len(before), 2 * len(before) - 2
    means, squares = zip(*(_moments(figures) for figures in (before, after)), strict=True)
    error = math.sqrt(sum(squares) / freedom) * math.sqrt(2 / count)
    limit = _quantile(ALARMS / OTHER_LAWS / comparisons, freedom) * error
    return Growth(_exp(means[1] - means[0]), max(_exp(limit), LEAST))


def _moments(figures: Sequence[float]) -> tuple[float, float]:
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


FIGURES = {"rms": "rms", "worst": "largest"}
"""The figures of an error, with their words."""
Cell = tuple[str, str]
"""Layout and intermediate; the intermediate "" of a whole layout."""


@dataclass(frozen=True)
class Changes:
    before: Entry
    after: Entry
    cells: Mapping[Cell, Mapping[str, Growth]]
    """How each figure of each error changed."""

    def verdict_of(self, cell: Cell) -> str:
        """Grown where either figure is; else improved where either is."""
        verdicts = {one.verdict for one in self.cells[cell].values()}
        return next((verdict for verdict in (GROWN, IMPROVED) if verdict in verdicts), SAME)

    @property
    def grown(self) -> list[Cell]:
        return [cell for cell in self.cells if self.verdict_of(cell) == GROWN]

    @property
    def gone(self) -> list[Cell]:
        """Those of the file that are missing; a layout that is missing as a whole counts once."""
        found: dict[Cell, None] = {}
        for layout, name in self.before.cells:
            if (layout, name) not in self.after.cells:
                found[layout, name if layout in self.after.errors else ""] = None
        return list(found)

    @property
    def coarser(self) -> list[str]:
        """What is now rounded more coarsely than its contract allows, and was not before."""
        return [name for name in self.after.coarser if name not in self.before.coarser]

    @property
    def fails(self) -> bool:
        return bool(self.grown or self.gone or self.coarser)


def compared(entry: Entry) -> int:
    """How many figures are compared."""
    return len(FIGURES) * len(entry.cells)


def changes(before: Entry, after: Entry, comparisons: int) -> Changes:
    """What became of the errors of an entry; `comparisons` counts the figures of all entries that are compared."""
    cells, now = dict[Cell, dict[str, Growth]](), after.cells
    for cell, old in before.cells.items():
        if cell in now:
            pairs = {name: (getattr(old, name), getattr(now[cell], name)) for name in FIGURES}
            cells[cell] = {name: growth(*pair, comparisons) for name, pair in pairs.items()}
    return Changes(before, after, cells)


def _differences(old: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    names = [name for name in {**old, **now} if old.get(name) != now.get(name)]
    return ", ".join(f"{name} {old.get(name)} -> {now.get(name)}" for name in names)


def refuse_other(before: Entry, ran: str, case: Mapping[str, object]) -> None:
    """Refuses a comparison with an entry whose errors are not comparable. Raises UsageFailure."""
    what = f"baseline of {before.command_words}"
    if ran != before.ran:
        raise UsageFailure(
            f"{what}: it was saved by {before.ran}, and {ran} has other errors",
            "run it where it was saved (--device cpu runs Triton's interpreter), or keep a --baseline for each",
        )
    if told := _differences(before.case, case):
        way_out = "take its entry out of the file, and check again"
        raise UsageFailure(f"{what}: its case is another one now ({told})", way_out)


def render_changes(changes: Changes, width: int, *, utf8: bool = True) -> list[Text]:
    """The factors by which errors changed, layout by layout, and a line for each that fails."""
    before, counts = changes.before, Counter(map(changes.verdict_of, changes.cells))
    kinds = [one for one in (GROWN, IMPROVED, SAME) if counts[one] or one == GROWN]
    told = ", ".join(f"{counts[one]} {one}" for one in kinds)
    head = f"{before.command_words}: {told}, over {plural(len(before.seeds), 'draw')}"
    verdict, style = ("GROWN", "bold red") if changes.fails else ("NO GROWTH", "bold green")
    lines = [*headed(verdict, style, head, width)]
    lines.append(Text("  rms error beside that saved, as a factor", "dim"))
    marks, factors = UTF8 if utf8 else ASCII, dict[str, list[str]]()
    shown = {GROWN: marks.mismatch, IMPROVED: marks.improved, SAME: ""}
    for (layout, name), figures in changes.cells.items():
        mark = shown[changes.verdict_of((layout, name))]
        words = f"{name} {mark}{_written(figures['rms'].factor)}{marks.times}"
        factors.setdefault(layout, []).append(words)
    for layout, of in factors.items():
        lines += folded(f"{layout}: {', '.join(of)}", width)
    lines += [Text(line, "bold") for line in _failing(changes)]
    if told := _differences(before.environment, changes.after.environment):
        words = f"the environment has changed, and the noise may have: {told}"
        lines.append(Text(f"  {words}"))
    return lines


def _failing(changes: Changes) -> Iterator[str]:
    for layout, name in changes.grown:
        words = []
        for figure, change in changes.cells[layout, name].items():
            if change.verdict == GROWN:
                factors = f"{_written(change.factor)}x, noise up to {_written(change.noise)}x"
                words.append(f"{FIGURES[figure]} error {factors}")
        yield f"GREW {name} {layout} {'; '.join(words)}"
    for layout, name in changes.gone:
        yield f"GONE {name or 'every intermediate'} in {layout}"
    for name in changes.coarser:
        yield f"COARSER {name}: rounded further than its contract says"


def _written(factor: float) -> str:
    return f"{factor:.2f}" if factor < 100 else f"{factor:.3g}"


def changes_as_json(changes: Changes) -> dict[str, Any]:
    before, cells = changes.before, []
    for (layout, name), figures in changes.cells.items():
        cell: dict[str, Any] = {"layout": layout, "intermediate": name}
        cell["verdict"] = changes.verdict_of((layout, name))
        for figure, change in figures.items():
            factor = change.factor if math.isfinite(change.factor) else None
            cell[figure] = {"factor": factor, "noise": change.noise, "verdict": change.verdict}
        cells.append(cell)
    return {
        "verdict": GROWN if changes.fails else SAME,
        "target": {"name": before.request.target},
        "options": dict(before.request.options),
        "seeds": before.seeds,
        "ran": before.ran,
        "environment": {"before": before.environment, "after": changes.after.environment},
        "cells": cells,
        "gone": [
            {"layout": layout, "intermediate": name or None} for layout, name in changes.gone
        ],
        "coarser": changes.coarser,
    }


def together(documents: list[dict[str, Any]]) -> dict[str, Any]:
    """What became of every entry of a file; a mismatch or growth anywhere is one, else an error anywhere is one."""
    verdicts = {document["verdict"] for document in documents}
    verdict = next(known for known in ("mismatch", GROWN, "error", SAME) if known in verdicts)
    schema = "gradprobe.baseline.diff/1"
    return {"schema": schema, "verdict": verdict, "alarms": ALARMS, "entries": documents}
