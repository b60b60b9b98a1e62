"""The walk over a large run: block after block, tile after tile, by the least budget first and by the whole one then.

Two passes judge a block. The sieve holds its elements to what the budget allows at least (`least`), which is never
kinder than the whole budget: in float64 are the reference and what is subtracted from it alone. Of the key heads that
do not pass, which are not wrong yet, `compare` decides by the whole budget. Both leave a Finding of their heads, and
these together are the run's. No sums of all heads are held.

Kept of each result of linear size are its error and what it is allowed at least, in bfloat16: by these a further run of
the same values is judged without the reference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..reference.attention import MATRICES
from ..runtime.run import Trace
from .block import Block, blocks, key_heads_at_once
from .compare import Comparison, allowed
from .declared_precision import output_rounding
from .large_run import KEPT, KEPT_AS, OFF, LargeRun, Parts
from .tally import Finding, Tally
from .totals import Totals


@dataclass
class LargeRuns:
    """Compares the large runs of one target; of several of the same values the reference is computed for the first."""

    several: bool = True
    """Whether more runs than one are to come."""
    _known: Parts | None = None

    def compared(
        self,
        run: LargeRun,
        whole: Callable[[], Comparison],
        tick: Callable[[float], None] = lambda fraction: None,
    ) -> Comparison | None:
        """What all blocks come to; None where a total has to be judged with all blocks at once.

        Args:
            whole: compares the run at once, by the whole budget.
        """
        if self._known is not None and _are_equal(self._known.run, run):
            again = _again(self._known, run.trace)
            if again is not None:
                return again.together(whole)
        parts = _walk(run, tick, is_kept=self.several)
        self._known = parts if self.several and parts is not None and parts.matches else None
        return None if parts is None else parts.together(whole)


def _are_equal(known: LargeRun, run: LargeRun) -> bool:
    """Whether two runs have the same values and precision, and results of the same names and dtypes."""
    inputs, others, results = known.inputs, run.inputs, run.trace.values
    dtypes = [
        {name: value.dtype for name, value in of.items()} for of in (known.trace.values, results)
    ]
    if (
        known.precision != run.precision
        or inputs.keys() != others.keys()
        or dtypes[0] != dtypes[1]
    ):
        return False
    return all(
        value is others[name] or value.equal(others[name]) for name, value in inputs.items()
    )


def _walk(run: LargeRun, tick: Callable[[float], None], *, is_kept: bool) -> Parts | None:
    """Both passes over every block; None where something is wrong beside a total, or a total does not pass."""
    from .sieve import (
        SiftedBlock,
        key_heads_of_a_block,
    )  # as elsewhere here: small runs do without

    parts, totals = Parts(run), Totals(run.case, run.trace.values, like=run.values["q"])
    for name in (name for name in run.trace.values if is_kept and name not in MATRICES):
        for kept in (parts.errors, parts.bounds):
            value = run.trace.values[name]
            kept[name] = torch.empty(value.shape, dtype=KEPT_AS, device=value.device)
    every = list(blocks(run.case, key_heads_of_a_block(run)))
    for done, block in enumerate(every, 1):
        for part in SiftedBlock(parts, totals, block).run():
            _by_the_whole_budget(parts, part)
        if not parts.matches and totals.expected:
            return None
        tick(done / len(every))
    return parts if _totals_pass(parts, totals) else None


def _by_the_whole_budget(parts: Parts, block: Block) -> None:
    """Judges a block by the whole budget, its parents' errors told apart from its own."""
    run, comparison = parts.run, parts.run.by_budget(block, blame=True)
    parts.found.append((block, comparison.findings))
    parts.matches &= comparison.matches
    parts.undecided += comparison.undecided
    came = run.of(block)
    for name in parts.errors.keys() & came.keys():
        bound = allowed(comparison, name, came[name].dtype)
        parts.keep(name, block, came[name].double() - comparison.expected[name], bound * KEPT)


def _totals_pass(parts: Parts, totals: Totals) -> bool:
    """Judges what all blocks add to."""
    run = parts.run
    for name, expected in totals.expected.items():
        value, bound = run.trace.values[name], totals.bound(name, run.precision)
        bound = (bound + output_rounding(expected, bound, value.dtype)) * KEPT
        error = (value.double() - expected).masked_fill(value == expected, 0.0)
        parts.keep(name, None, error, bound)
        if not _judge_total(parts, name, error, bound):
            return False
    return True


def _judge_total(parts: Parts, name: str, error: Tensor, bound: Tensor) -> bool:
    from .sieve import errors_of

    shape = Tally(parts.run.case, name, error.shape).shape
    errors = errors_of(error.reshape(-1, *shape[2:]), bound.reshape(-1, *shape[2:]).clone())
    parts.whole[name] = errors.finding(parts.run.case, name, error.shape, None, errors.right)
    return bool(errors.right.all())


def _again(known: Parts, trace: Trace) -> Parts | None:
    """Another run of the same values, where it passes by what is known of them; None where that does not tell."""
    run, first = replace(known.run, trace=trace), known.run.trace.values
    others = [name for name, value in trace.values.items() if not value.equal(first[name])]
    if not known.errors.keys() >= {*others}:
        return None
    found: list[tuple[Block, Mapping[str, Finding]]] = [
        (block, {name: of[name] for name in of.keys() - {*others}}) for block, of in known.found
    ]
    parts = Parts(run, found, dict(known.whole), undecided=known.undecided)
    for name in others:
        if name in known.whole:
            error, bound = _beside_the_first(known, name, trace.values[name], None)
            passes = _judge_total(parts, name, error, bound)
        else:
            every = blocks(run.case, key_heads_at_once(run.case))
            passes = all([_judge_again(known, parts, name, block) for block in every])
        if not passes:
            return None
    return parts


def _judge_again(known: Parts, parts: Parts, name: str, block: Block) -> bool:
    """Notes what a block of a further run comes to."""
    from .sieve import errors_of

    case = parts.run.case
    part = block.of(parts.run.trace.values[name], case.axes(name))
    error, bound = _beside_the_first(known, name, part, block)
    errors = errors_of(error[0], bound[0])
    findings = {
        name: errors.finding(block.case(case), name, tuple(part.shape), None, errors.right)
    }
    parts.found.append((block, findings))
    return bool(errors.right.all())


def _beside_the_first(
    known: Parts, name: str, value: Tensor, block: Block | None
) -> tuple[Tensor, Tensor]:
    """How large the errors of a further run may be at most, and what is allowed of each."""
    of_first = (known.run.trace.values[name], known.errors[name], known.bounds[name])
    axes = known.run.case.axes(name)
    first, before, bound = (
        (of if block is None else block.of(of, axes)).double() for of in of_first
    )
    value = value.double()
    error = before + (value - first).masked_fill(value == first, 0.0)
    # The first run's error is known to so many bits.
    return error.abs() + before.abs() * OFF, bound
