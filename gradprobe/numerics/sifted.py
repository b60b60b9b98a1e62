"""SiftedRun: a run of which every element passed the sieve, and what is kept of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache

import torch
from torch import Tensor

from ..model.case import Case
from ..reference.attention import BY_KEY, BY_ROW, MATRICES
from ..runtime.trace import Trace, expected_shapes
from .block import Block
from .compare import Comparison, Later, SieveResult, attention_of, compare
from .declared_precision import Precision, ordinary
from .identities import Invariant
from .tally import Finding, Tally

# Errors and bounds are kept as bfloat16, so that three layouts need no more memory than their results. What is kept of
# a bound is never more than the bound; of an error it is off by half a unit in the last place.
KEPT_AS = torch.bfloat16
OFF = 2.0**-8
KEPT = 1.0 - OFF


@dataclass
class SiftedRun:
    """A run of which every element passed."""

    case: Case
    values: Mapping[str, Tensor]
    trace: Trace
    precision: Precision
    errors: dict[str, Tensor] = field(default_factory=dict)
    """By intermediate of linear size: the run's values less the expected ones."""
    bounds: dict[str, Tensor] = field(default_factory=dict)
    """What each of them is allowed at least, the rounding of its own dtype included."""
    ratios: dict[str, Tensor] = field(default_factory=dict)
    """[B, H], the worst error of each head as a multiple of what is allowed at least."""
    rows: dict[str, Tensor] = field(default_factory=dict)
    """The same of each row, [B, H, R]."""
    seen: dict[str, Tensor] = field(default_factory=dict)
    """Of P, dP and dS the tiles of their maps that masks leave, [B, R, C]."""
    squares: dict[str, Tensor] = field(default_factory=dict)
    """The sum of the squares of these multiples over all elements."""
    largest: dict[str, Tensor] = field(default_factory=dict)
    """The largest error."""
    invariants: list[Invariant] = field(default_factory=list)
    live: Tensor = field(default_factory=lambda: torch.empty(0))
    """[B, H, M] bool: the rows that see a key."""
    arriving: Tensor = field(default_factory=lambda: torch.empty(0))
    """[B, H, Dv]: dO summed over these rows."""
    undecided: int = 0
    """Entries of which rounding surely decides whether the lazy family's ReLU lets them through."""

    def by_the_whole_budget(self, block: Block) -> Comparison:
        """A block compared by the whole budget, without what other blocks add to."""
        x = attention_of(self.case, block.inputs(self.case, self.values))
        came = came_within(self.case, block, self.trace)
        return compare(block.case(self.case), x, Trace(came, self.trace.sources), self.precision, blame=False)

    def comparison(self, whole: Callable[[], Comparison]) -> Comparison:
        """The comparison of the run, with ratios that are at least as large as those by the whole budget would be.

        Args:
            whole: makes the same by the whole budget.
        """
        whole, shapes, given = cache(whole), expected_shapes(self.case), self.trace.values
        linear = [name for name in shapes if name not in MATRICES]
        summed = [name for name in ("P", "dS") if name in given]
        return Comparison(
            findings={name: self._finding(name) for name in shapes if name in given},
            absent=tuple(name for name in shapes if name not in given),
            precision=ordinary(self.precision),
            undecided=self.undecided,
            expected=Later(linear, lambda: whole().expected),
            bounds=Later(linear, lambda: whole().bounds),
            row_sums=Later(summed, lambda: whole().row_sums),
            leaks=dict.fromkeys(summed, 0),
            by_sieve=SieveResult(self.bounds, self.by_the_whole_budget),
        )

    def _finding(self, name: str) -> Finding:
        values, ratio = self.trace.values[name], self.ratios[name].cpu()
        none = torch.zeros(ratio.shape, dtype=torch.long)
        rms = float(self.squares[name] / max(values.numel(), 1)) ** 0.5
        tally = Tally(self.case, name, values.shape)
        tally.grid.bound(self.rows[name].cpu(), self.seen.get(name))
        return Finding(
            name, self.case.axes(name), values.numel(), 0, float(self.largest[name]), ratio, rms, none, none,
            tally.wrong_rows, tally.wrong_columns, tally.largest, signs=tally.grid.signs(), cell=tally.grid.cell,
            bounded=True,
        )  # fmt: skip


def came_within(case: Case, block: Block, trace: Trace) -> dict[str, Tensor]:
    """A block's part of what came, of what is made within blocks: no total over rows and batches."""
    within = trace.values.keys() & {*BY_ROW, *BY_KEY}
    return {name: block.of(value, case.axes(name)) for name, value in trace.values.items() if name in within}
