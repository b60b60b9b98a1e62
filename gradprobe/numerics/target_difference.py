"""What two targets gave for the same inputs: where they differ, and by how much of what one of them may err."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import torch
from msgspec.structs import replace
from torch import Tensor

from ..model.case import Case, unlike
from ..model.layout_run import Difference
from ..model.number import Number
from ..reference.attention import BY_ROW
from .compare import allowed_on, judge, judge_whole, tiles_of
from .evidence import LayoutRun, MeasuredRun
from .locate import locate_at
from .tally import Finding, Judgement, Tally


class SideBySide:
    """Keeps what a target exports, and compares it with what another one did, layout by layout as it comes.

    A kernel that writes where it should not may change in a later layout what it gave in this one.

    Args:
        kept: the file that it is written into, for another check; "" for none.
        other: such a file of another target; "" for none.
        case: that one's: of another problem nothing is compared.
    """

    def __init__(self, kept: str, other: str = "", case: Case | None = None) -> None:
        self._kept, self._case = kept, case
        self._given: dict[str, dict[str, Tensor]] = {}
        self._other: Mapping[str, Mapping[str, Tensor]] = (
            torch.load(other, weights_only=True) if other else {}
        )
        self._seen = set[str]()
        self.differences: list[Difference] = []
        """Of all layouts that both took. An element of one differs *beyond* where it lies further from the other's than
        that may lie from the reference."""

    def take(self, case: Case, runs: Iterable[LayoutRun]) -> None:
        """Looks at the runs that are new."""
        is_alike = self._case is not None and not unlike(case, self._case)
        for run in runs:
            if not run.is_plain or run.measured is None or run.layout in self._seen:
                continue
            self._seen.add(run.layout)
            trace = run.measured.trace
            own = [name for name in trace.values if trace.sources[name] == "exported"]
            if self._kept:
                self._given[run.layout] = {name: trace.values[name].cpu() for name in own}
                torch.save(self._given, self._kept)
            others = self._other.get(run.layout, {}) if is_alike else {}
            common = {
                name: others[name].to(trace.values[name].device) for name in own if name in others
            }
            self.differences += _of_layout(case, run.layout, run.measured, common)


def _of_layout(
    case: Case, layout: str, measured: MeasuredRun, others: Mapping[str, Tensor]
) -> Iterator[Difference]:
    """Judges each element by the other target's, with the errors that the reference's values allow."""
    comparison, values = measured.comparison, measured.trace.values
    tallies = {name: Tally(case, name, values[name].shape) for name in others}
    by_row = [name for name in others if name in BY_ROW]
    for tile in tiles_of(case, measured.x) if by_row else ():
        place = (tile.batch, tile.heads, tile.rows)
        expected = comparison.evaluate(measured.x, tile, None)
        budget = allowed_on(measured.x, tile, expected, comparison.precision, comparison.recovery)
        for name in by_row:
            beside = {**expected, name: others[name][place].double()}
            judged = judge(values[name][place], beside, budget, name)
            tallies[name].add(tile, _alike(judged), None)
    for name, tally in tallies.items():
        if name not in BY_ROW:
            judged = judge_whole(values[name], others[name].double(), comparison.bounds[name])
            tally.add_whole(_alike(judged), None)
        differing = int((~_same(values[name], others[name])).sum())
        yield _difference(case, layout, measured, tally.finding(), differing)


def _alike(judged: Judgement) -> Judgement:
    """No difference where neither is a number."""
    return judged._replace(right=judged.right | _same(judged.actual, judged.expected))


def _same(values: Tensor, other: Tensor) -> Tensor:
    return (values == other) | (values.isnan() & other.isnan())


def _difference(
    case: Case, layout: str, measured: MeasuredRun, finding: Finding, differing: int
) -> Difference:
    """With what the reference gives at the first difference, and what the other target gave there."""
    heads = tuple(finding.wrong.any(0).nonzero().flatten().tolist())
    first = finding.first_wrong
    found = Difference(
        layout=layout, name=finding.name, total=finding.total, differing=differing, beyond=finding.mismatched,
        max_budget_ratio=Number(finding.max_ratio), heads=heads, first=first,
    )  # fmt: skip
    if first is None:
        return found
    at = (first.batch or 0, first.head or 0, first.row or 0, first.col or 0)
    of = (case, measured.x, measured.trace, measured.comparison, finding.name)
    located = locate_at(*of, at, float(first.budget or 0.0))
    return replace(found, first=replace(located, window=None), other=first.expected)
