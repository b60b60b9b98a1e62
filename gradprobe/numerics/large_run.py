"""LargeRun: a run that is compared block by block. Parts: what was found of its blocks, and what is kept of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import torch
from msgspec import structs
from torch import Tensor

from ..model.assignment import OUTPUTS
from ..model.case import Case
from ..model.intermediates import DERIVED
from ..model.layout_run import Element
from ..reference import Attention, evaluate
from ..reference.attention import BY_KEY, BY_ROW, MATRICES
from ..runtime.run import Trace, expected_shapes
from .block import Block
from .compare import Comparison, Evaluate, attention_of, compare, promoted
from .declared_precision import Precision, ordinary
from .tally import Finding, RisingErrors, Tally

# Errors and bounds are kept as bfloat16, so that three layouts need no more memory than their results. What is kept of
# a bound is never more than the bound; of an error it is off by half a unit in the last place.
KEPT_AS = torch.bfloat16
OFF = 2.0**-8
KEPT = 1.0 - OFF
SMALLEST_BOUND = 2.0**-120


class LazyTensors(Mapping[str, Tensor]):
    """A mapping of which the names are known, and the values made when one of them is asked for."""

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
        return {
            name: value for name, value in self.values.items() if name not in (*DERIVED, *OUTPUTS)
        }

    def problem(self, block: Block) -> Attention:
        """The reference's problem of a block."""
        return attention_of(block.case(self.case), block.inputs(self.case, self.inputs))

    def of(self, block: Block) -> dict[str, Tensor]:
        """A block's part of what came, without the totals, to which all blocks add."""
        within = {
            name: value for name, value in self.trace.values.items() if name in (*BY_ROW, *BY_KEY)
        }
        return {name: block.of(value, self.case.axes(name)) for name, value in within.items()}

    def by_budget(self, block: Block, *, blame: bool = False) -> Comparison:
        """A block compared by the whole budget, without the totals."""
        case, trace = block.case(self.case), Trace(self.of(block), self.trace.sources)
        return compare(
            case,
            self.problem(block),
            trace,
            self.precision,
            evaluate=self.evaluate,
            blame=blame,
            is_part=True,
        )


@dataclass
class Parts:
    """What was found of a run, and what is kept of it."""

    run: LargeRun
    found: list[tuple[Block, Mapping[str, Finding]]] = field(default_factory=list)
    """Where a head stands in two of them the later one holds."""
    whole: dict[str, Finding] = field(default_factory=dict)
    """Of the totals."""
    matches: bool = True
    undecided: int = 0
    errors: dict[str, Tensor] = field(default_factory=dict)
    """By intermediate of linear size: the run's values less the expected ones; empty where no further run comes."""
    bounds: dict[str, Tensor] = field(default_factory=dict)
    """What each of them is allowed at least, the rounding of its own dtype included."""
    maps: dict[tuple[str, int], Tensor] = field(default_factory=dict)
    """Of P, dP and dS in a batch, the tiles of their maps that masks leave, [R, C]."""

    def keep(self, name: str, block: Block | None, error: Tensor, bound: Tensor) -> None:
        """Keeps errors [1, h, r, ...] of a block, or those of all blocks, and what is allowed of each."""
        if name not in self.errors:
            return
        bound = bound.where(bound > SMALLEST_BOUND, 0.0)
        for kept, of in ((self.errors[name], error), (self.bounds[name], bound)):
            part = kept if block is None else block.of(kept, self.run.case.axes(name))
            part.copy_(of)

    def together(self, whole: Callable[[], Comparison]) -> Comparison:
        """The comparison of the run.

        Args:
            whole: makes the same at once, by the whole budget, where values are asked for.
        """
        run, shapes = self.run, expected_shapes(self.run.case)
        linear = [name for name in shapes if name not in MATRICES]
        given = [name for name in shapes if name in run.trace.values]
        found = Comparison(
            {
                name: self.whole[name] if name in self.whole else self._finding(name)
                for name in given
            },
            tuple(name for name in shapes if name not in given),
            precision=ordinary(run.precision),
            undecided=self.undecided,
            expected=LazyTensors(linear, lambda: whole().expected),
            bounds=LazyTensors(linear, lambda: whole().bounds),
            by_block=run.by_budget,
        )
        return promoted(found)

    def _finding(self, name: str) -> Finding:
        """What was found of an intermediate in all blocks."""
        made = Tally(self.run.case, name, self.run.trace.values[name].shape).finding()
        found = [(block, findings[name]) for block, findings in self.found if name in findings]
        own, rising = list[Element](), list[Element]()
        for block, finding in found:
            place = (
                slice(block.batch, block.batch + 1),
                block.kv_heads if name in BY_KEY else block.heads,
            )
            for into, of in zip(_by_head(made), _by_head(finding), strict=True):
                into[place] = of
            for elements, errors in ((own, finding.rising_own), (rising, finding.rising)):
                elements += [_placed(block, element) for element in errors.elements]
        counted = sum(one.counted for _, one in found)
        return replace(
            made,
            total=sum(one.total for _, one in found),
            non_finite=sum(one.non_finite for _, one in found),
            max_abs_err=max(one.max_abs_err for _, one in found),
            rms_ratio=math.sqrt(
                sum(one.rms_ratio**2 * one.counted for _, one in found) / max(counted, 1)
            ),
            rising_own=RisingErrors.of(own),
            rising=RisingErrors.of(rising),
            counted=counted,
            bounded=any(one.bounded for _, one in found),
        )


def _by_head(of: Finding) -> tuple[Tensor, ...]:
    assert of.signs is not None
    return of.ratio, of.wrong, of.own, of.wrong_rows, of.wrong_columns, of.largest, of.signs


def _placed(block: Block, element: Element) -> Element:
    """An element of a block as one of the case."""
    heads = block.kv_heads if element.intermediate in BY_KEY else block.heads
    return structs.replace(element, batch=block.batch, head=heads.start + (element.head or 0))
