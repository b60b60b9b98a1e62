"""LargeRun: a run that is compared block by block. JudgedRun: what was found of its blocks.

Of each result of linear size its error and what it is allowed at least are kept: by these a further run of the same
values is judged without the reference.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..model.assignment import OUTPUTS
from ..model.case import Case
from ..model.intermediates import DERIVED
from ..reference import Attention, evaluate
from ..reference.attention import BY_KEY, BY_ROW, MATRICES
from ..runtime.run import Trace, expected_shapes
from .block import Block
from .compare import Comparison, Evaluate, attention_of, compare, promoted
from .declared_precision import Precision, ordinary
from .least import NEARLY_0
from .tally import Tally

# So that three layouts need no more memory than their results. What is kept of a bound is never more than the bound; of
# an error it is off by half a unit in the last place.
KEPT_AS = torch.bfloat16
OFF = 2.0**-8
KEPT = 1.0 - OFF
SMALLEST_BOUND = 2.0**-120


class LazyTensors(Mapping[str, Tensor]):
    """A mapping of known names, whose values are made when one of them is asked for."""

    def __init__(self, names: Iterable[str], make: Callable[[], Mapping[str, Tensor]]) -> None:
        self._names, self._make = tuple(names), make

    def __getitem__(self, name: str) -> Tensor:
        return self._make()[name]

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


@dataclass(frozen=True)
class LargeRun:
    """A run that is compared block by block.

    Args:
        values: its inputs, canonical, on the device of its results.
    """

    case: Case
    values: Mapping[str, Tensor]
    trace: Trace
    precision: Precision
    evaluate: Evaluate = evaluate

    @property
    def inputs(self) -> dict[str, Tensor]:
        """What the reference takes of the values."""
        others = (*DERIVED, *OUTPUTS)
        return {name: value for name, value in self.values.items() if name not in others}

    def problem(self, block: Block) -> Attention:
        return attention_of(block.case(self.case), block.inputs(self.case, self.inputs))

    def of(self, block: Block) -> dict[str, Tensor]:
        """A block's part of what came, without the totals, to which all blocks add."""
        return {
            name: block.of(value, self.case.axes(name))
            for name, value in self.trace.values.items()
            if name in (*BY_ROW, *BY_KEY)
        }

    def by_budget(self, block: Block, *, blame: bool = False) -> Comparison:
        """A block compared by the whole budget, without the totals."""
        case, trace = block.case(self.case), Trace(self.of(block), self.trace.sources)
        return compare(
            case, self.problem(block), trace, self.precision, evaluate=self.evaluate, blame=blame, is_part=True
        )  # fmt: skip

    def is_like(self, other: LargeRun) -> bool:
        """Whether two runs have the same values and precision, and results of the same names and dtypes."""
        inputs, others = self.inputs, other.inputs
        own, theirs = (
            {name: value.dtype for name, value in run.trace.values.items()}
            for run in (self, other)
        )
        if self.precision != other.precision or own != theirs:
            return False
        return inputs.keys() == others.keys() and all(
            value is others[name] or value.equal(others[name]) for name, value in inputs.items()
        )


@dataclass
class LeastErrors:
    """How far the heads of an intermediate are off, [h] each, as multiples of what is allowed at least."""

    worst: Tensor
    squares: Tensor
    """The sum of the squares of all."""
    largest: Tensor
    """The largest error itself."""

    @staticmethod
    def joined(parts: Sequence[LeastErrors]) -> LeastErrors:
        """Those of tiles."""
        names = ("worst", "squares", "largest")
        worst, squares, largest = (
            torch.stack([getattr(one, name) for one in parts]) for name in names
        )
        return LeastErrors(worst.amax(0), squares.sum(0), largest.amax(0))

    @property
    def right(self) -> Tensor:
        """[h] whether all of a head are allowed; a NaN of either makes a NaN, which is not."""
        return (self.worst <= 1.0) & ~self.squares.isnan()


def errors_of(error: Tensor, bound: Tensor, share: float = 1.0) -> LeastErrors:
    """Errors [h, ...] beside what is allowed of each at least: a share of `bound`, which is spoiled."""
    largest = torch.linalg.vector_norm(error.flatten(1), math.inf, dim=1)
    # 0 of 0 that are allowed is right.
    ratio = torch.div(error, bound.clamp_(min=NEARLY_0[bound.dtype]), out=bound).flatten(1)
    worst = torch.linalg.vector_norm(ratio, math.inf, dim=1) / share
    norm = torch.linalg.vector_norm(ratio, dim=1, dtype=torch.double) / share
    return LeastErrors(worst, norm.square(), largest)


class JudgedRun:
    """What was found of a run, and what is kept of it.

    Args:
        known: what was found of some intermediates before.
    """

    def __init__(
        self, run: LargeRun, known: Mapping[str, Tally] = {}, undecided: int = 0
    ) -> None:
        self.run, self.undecided, self.matches = run, undecided, True
        self.tallies = {
            name: known.get(name) or Tally(run.case, name, value.shape)
            for name, value in run.trace.values.items()
        }
        self.kept: dict[str, tuple[Tensor, Tensor]] = {}
        """By intermediate of linear size: its errors, and what each is allowed at least, the rounding of its own dtype
        included; empty where no further run comes."""

    def part(self, tensor: Tensor, name: str, block: Block | None) -> Tensor:
        return tensor if block is None else block.of(tensor, self.run.case.axes(name))

    def keep(self, name: str, block: Block | None, error: Tensor, bound: Tensor) -> None:
        """Keeps errors of a block, or those of all blocks, and what is allowed of each."""
        if name in self.kept:
            errors, bounds = (self.part(kept, name, block) for kept in self.kept[name])
            errors.copy_(error)
            bounds.copy_(bound.where(bound > SMALLEST_BOUND, 0.0))

    def judge(self, name: str, block: Block | None, error: Tensor, bound: Tensor) -> bool:
        """Notes what an intermediate of a block, or a total, comes to by its errors; whether all of it passes."""
        heads = error.shape[: 2 if self.tallies[name].axes[0] in "b1" else 1]
        shape = (math.prod(heads), -1)
        errors = errors_of(error.reshape(shape), bound.clone().reshape(shape))
        self.note(name, block, errors, errors.right)
        return bool(errors.right.all())

    def note(self, name: str, block: Block | None, errors: LeastErrors, right: Tensor) -> None:
        """Notes the heads [h] of a block that are right, with ratios no less than those by the whole budget."""
        tally, right = self.tallies[name], right.cpu()
        worst = errors.worst.cpu().double().masked_fill(~right, 0.0)
        place: Any = ...
        if block is not None:
            place = block.batch, block.kv_heads if name in BY_KEY else block.heads
        tally.ratio[place] = worst.reshape(tally.ratio[place].shape)
        elements = int(right.sum()) * math.prod(tally.shape[2:])
        tally.total += elements
        tally.counted += elements
        tally.squares += float(errors.squares.cpu()[right].sum())
        if elements:
            tally.max_abs_err = max(tally.max_abs_err, float(errors.largest.cpu()[right].max()))

    def note_compared(self, block: Block, comparison: Comparison) -> None:
        """Notes what the whole budget found of a block, in place of what the sieve did."""
        self.matches &= comparison.matches
        self.undecided += comparison.undecided
        for name, finding in comparison.findings.items():
            heads = block.kv_heads if name in BY_KEY else block.heads
            self.tallies[name].add_heads(finding, block.batch, heads)

    def together(self, whole: Callable[[], Comparison]) -> Comparison:
        """The comparison of the run.

        Args:
            whole: makes the same at once, by the whole budget, where values are asked for.
        """
        run, shapes = self.run, expected_shapes(self.run.case)
        linear = [name for name in shapes if name not in MATRICES]
        found = Comparison(
            {name: self.tallies[name].finding() for name in shapes if name in self.tallies},
            tuple(name for name in shapes if name not in self.tallies),
            precision=ordinary(run.precision),
            undecided=self.undecided,
            expected=LazyTensors(linear, lambda: whole().expected),
            bounds=LazyTensors(linear, lambda: whole().bounds),
            by_block=run.by_budget,
        )
        return promoted(found)
