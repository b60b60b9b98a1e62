"""A large case compared block by block, so that what is right passes the sieve and no sums of all heads are held."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import torch
from msgspec import structs
from torch import Tensor

from ..model.case import Case
from ..model.layout_run import Element
from ..reference import evaluate
from ..reference.attention import BY_KEY, MATRICES
from ..runtime.trace import Trace, expected_shapes
from .block import Block, blocks, key_heads_at_once, parts_of
from .budget import Recovery
from .compare import Comparison, Evaluate, Later, SieveResult, compare, promoted
from .declared_precision import Precision, ordinary
from .identities import Invariant, allowed, identities, worst
from .rows import Rows, problem_of
from .sieve import Sieve
from .sifted import KEPT, KEPT_AS
from .tally import Finding, RisingErrors, Tally

OF_COUNTS = "I6"


@dataclass(frozen=True)
class _Part:
    """What is kept of one block: of its comparison what does not grow with length."""

    block: Block
    findings: Mapping[str, Finding]
    undecided: int
    leaks: Mapping[str, int]
    reading: Mapping[str, float]
    invariants: tuple[Invariant, ...]
    is_whole: bool
    """Whether it was compared by the whole budget."""

    @property
    def matches(self) -> bool:
        return all(finding.mismatched == 0 for finding in self.findings.values())


@dataclass(frozen=True)
class BlockComparison:
    """Compares the results of a run block by block.

    Args:
        values: the inputs of the run, canonical, on the device of its results.
        rows: those that the trace is of; None for all.
        coarse: whether it is held to the arithmetic that is coarser than the contract's, which the sieve does not know.
    """

    case: Case
    values: Mapping[str, Tensor]
    trace: Trace
    precision: Precision
    rows: Rows | None = None
    recovery: Recovery | None = None
    coarse: bool = False
    evaluate: Evaluate = evaluate

    def compared(
        self, whole: Callable[[], Comparison], tick: Callable[[float], None], *, until_wrong: bool = False
    ) -> tuple[Comparison, tuple[Invariant, ...]]:
        """What all blocks come to, and the identities.

        Args:
            whole: compares the run as a whole, where that is asked for after all.
            until_wrong: whether what follows a wrong block is left out.
        """
        # Some rows of many heads are one tile. Of whole heads one alone may be wrong.
        kv_heads = 1 if self.rows is None else key_heads_at_once(self.case)
        parts, every, least = list[_Part](), list(blocks(self.case, kv_heads)), self._nothing()
        for done, block in enumerate(every, 1):
            parts.append(self._part(block, least))
            tick(done / len(every))
            if until_wrong and not parts[-1].matches:
                break
        return self._together(parts, least, whole), tuple(_worst_of(parts))

    def _part(self, block: Block, least: Mapping[str, Tensor]) -> _Part:
        """A block, compared; what each element of it is allowed goes into `least`."""
        whole, invariants = self._compared(block)
        self._keep(block, whole, least)
        is_whole = whole.by_sieve is None
        return _Part(block, whole.findings, whole.undecided, whole.leaks, whole.reading, invariants, is_whole)

    def _compared(self, block: Block) -> tuple[Comparison, tuple[Invariant, ...]]:
        case, values, trace = block.case(self.case), block.inputs(self.case, self.values), self._trace(block)
        if self.recovery is None and not self.coarse:
            sifted = Sieve(several=False).sift(case, values, trace, self.precision, is_part=True)
            if sifted is not None:
                return sifted.comparison(lambda: self._by_budget(block)), tuple(sifted.invariants)
        comparison = self._by_budget(block)
        x = problem_of(case, values, self.rows)
        return comparison, tuple(identities(case, x, trace, comparison))

    def _trace(self, block: Block) -> Trace:
        of_block = {name: block.of(value, self.case.axes(name)) for name, value in self.trace.values.items()}
        return Trace(of_block, self.trace.sources)

    def _by_budget(self, block: Block, *, blame: bool = True) -> Comparison:
        recovery = self.recovery
        if recovery is not None:
            recovery = replace(recovery, zero_key=block.of(recovery.zero_key, "bhm"))
        case, values = block.case(self.case), block.inputs(self.case, self.values)
        x, held = problem_of(case, values, self.rows), self.precision.coarser if self.coarse else self.precision
        return compare(
            case, x, self._trace(block), held, recovery=recovery, evaluate=self.evaluate, blame=blame, is_part=True
        )

    def _nothing(self) -> dict[str, Tensor]:
        kept = self.recovery is None  # no other run is compared with one that was recovered
        given = {name: value for name, value in self.trace.values.items() if kept and name not in MATRICES}
        return {name: torch.zeros(value.shape, dtype=KEPT_AS, device=value.device) for name, value in given.items()}

    def _keep(self, block: Block, comparison: Comparison, least: Mapping[str, Tensor]) -> None:
        """Keeps what each element of linear size of a block is allowed at least."""
        known, dtypes = comparison.by_sieve, {name: self.trace.values[name].dtype for name in least}
        bounds = allowed(comparison, dtypes) if known is None else known.bounds
        for name, kept in least.items():
            block.of(kept, self.case.axes(name)).copy_(bounds[name] * (KEPT if known is None else 1.0))

    def _together(self, parts: list[_Part], least: Mapping[str, Tensor], whole: Callable[[], Comparison]) -> Comparison:
        shapes, given = expected_shapes(self.case), self.trace.values
        linear = [name for name in shapes if name not in MATRICES]
        summed = [name for name in ("P", "dS") if name in given]
        by_budget = {(one.batch, one.kv_heads.start) for part in parts if part.is_whole for one in parts_of(part.block)}
        found = Comparison(
            {name: self._finding(name, parts) for name in shapes if name in given},
            tuple(name for name in shapes if name not in given),
            precision=ordinary(self.precision),
            undecided=sum(part.undecided for part in parts),
            expected=Later(linear, lambda: whole().expected),
            bounds=Later(linear, lambda: whole().bounds),
            row_sums=Later(summed, lambda: whole().row_sums),
            leaks={name: sum(part.leaks[name] for part in parts) for name in summed},
            recovery=self.recovery,
            reading=_most_of(part.reading for part in parts),
            by_sieve=SieveResult(least, lambda block: self._by_budget(block, blame=False), by_budget),
        )
        return promoted(found)

    def _finding(self, name: str, parts: Iterable[_Part]) -> Finding:
        """What was found of an intermediate in all blocks."""
        made = Tally(self.case, name, self.trace.values[name].shape).finding()
        found = [(part.block, part.findings[name]) for part in parts]
        for block, finding in found:
            place = (slice(block.batch, block.batch + 1), block.kv_heads if name in BY_KEY else block.heads)
            for into, of in zip(_by_head(made), _by_head(finding), strict=True):
                into[place] = of
            if made.signs is not None and finding.signs is not None:
                made.signs[place] = finding.signs
        squares = sum(one.rms_ratio**2 * one.counted for _, one in found)
        counted = sum(one.counted for _, one in found)
        own, every = (
            RisingErrors.of(
                self._placed(block, element) for block, part in found for element in getattr(part, which).elements
            )
            for which in ("rising_own", "rising")
        )
        return replace(
            made,
            total=sum(one.total for _, one in found),
            non_finite=sum(one.non_finite for _, one in found),
            max_abs_err=max(one.max_abs_err for _, one in found),
            rms_ratio=math.sqrt(squares / max(counted, 1)),
            rising_own=own,
            rising=every,
            counted=counted,
            bounded=any(one.bounded for _, one in found),
        )

    def _placed(self, block: Block, element: Element) -> Element:
        """An element of a block as one of the case."""
        heads = block.kv_heads if element.intermediate in BY_KEY else block.heads
        return structs.replace(element, batch=block.batch, head=heads.start + (element.head or 0))


def _by_head(finding: Finding) -> tuple[Tensor, ...]:
    return finding.ratio, finding.wrong, finding.own, finding.wrong_rows, finding.wrong_columns, finding.largest


def _most_of(readings: Iterable[Mapping[str, float]]) -> dict[str, float]:
    found: dict[str, float] = defaultdict(float)
    for reading in readings:
        for name, most in reading.items():
            found[name] = max(found[name], most)
    return dict(found)


def _worst_of(parts: Iterable[_Part]) -> Iterable[Invariant]:
    """Each identity where it is furthest off; what is counted is counted in all blocks."""
    every: dict[tuple[str, str], list[Invariant]] = defaultdict(list)
    for part in parts:
        for invariant in part.invariants:
            every[invariant.of, invariant.key].append(invariant)
    for (subject, key), found in every.items():
        residuals, budgets = ([getattr(one, size) for one in found] for size in ("residual", "budget"))
        sizes = [torch.tensor(each, dtype=torch.double) for each in (residuals, budgets)]
        furthest = worst(key, subject, *sizes)
        yield replace(furthest, residual=sum(residuals)) if key == OF_COUNTS else furthest
