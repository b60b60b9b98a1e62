"""Second runs that must agree with the first: dO doubled, heads and batches reversed, another layout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from ..cases.layouts import AS_SAVED
from ..cases.outputs import outputs_of
from ..judging.invariants import Invariant
from ..judging.range import out_of_range
from ..judging.symmetry import LINEAR_IN_DO, agreement, doubled, permuted
from ..verdict import MISMATCH, Run
from .runs import summable
from .session import Session, accepted, derived, effective, measure

if TYPE_CHECKING:
    from torch import Tensor


def with_symmetries(session: Session, runs: list[Run]) -> list[Run]:
    """I8 and I9 from one more run of the first layout, I10 from it and distinct where both have the same values."""
    first = next((at for at, run in enumerate(runs) if run.measured is not None and summable(run.measured)), None)
    if first is None:
        return runs
    invariants, wrong = _linear_and_permuted(session, runs[first])
    runs[first] = _with(runs[first], invariants)
    measured, plain = runs[first].measured, runs[first].layout in ("contiguous", AS_SAVED)
    for at, run in enumerate(runs):
        if measured and run.measured and plain and run.layout.startswith("distinct"):
            same = agreement("I10", session.case, measured.trace, run.measured.trace, measured.comparison)
            runs[at] = _with(run, [same])
    return [*runs, *wrong]


def _with(run: Run, invariants: list[Invariant]) -> Run:
    assert run.measured is not None
    return replace(run, measured=replace(run.measured, invariants=(*run.measured.invariants, *invariants)))


def _linear_and_permuted(session: Session, run: Run) -> tuple[list[Invariant], list[Run]]:
    """dO doubled and heads and batches permuted, in one run; each alone only where the two together disagree.

    Where neither alone disagrees the target is not the same from call to call, and the run that showed it stands. The
    first run that disagrees is compared with its own reference, and returned if it is wrong.
    """
    if not _may_double(session, run):
        permutes, reverse = _symmetric(session, run, "I9", factor=1.0, reverse=True)
        return [permutes], [reverse] if reverse is not None and reverse.verdict == MISMATCH else []
    together, both = _symmetric(session, run, "I8", factor=2.0, reverse=True)
    if together.holds:
        return [together, replace(together, key="I9")], []
    linear, twice = _symmetric(session, run, "I8", factor=2.0, reverse=False)
    permutes, reverse = _symmetric(session, run, "I9", factor=1.0, reverse=True)
    wrong = [again for again in (both, twice, reverse) if again is not None and again.verdict == MISMATCH]
    return [together if linear.holds and permutes.holds else linear, permutes], wrong[:1]


def _may_double(session: Session, run: Run) -> bool:
    """Whether real values leave room in their dtype for twice the dO, which loss scaling may not."""
    import torch

    assert run.measured is not None
    results = run.measured.trace.values
    tensors = [session.values["do"], *(results[name] for name in LINEAR_IN_DO if name in results)]
    # Four times, for what a kernel holds in between.
    return not out_of_range(session.case, doubled(session.values)) and all(
        not tensor.numel() or float(tensor.nan_to_num().abs().max()) < torch.finfo(tensor.dtype).max / 4
        for tensor in tensors
    )


def _symmetric(session: Session, run: Run, key: str, *, factor: float, reverse: bool) -> tuple[Invariant, Run | None]:
    """An identity between a run and a second one; and where it is broken, the second one, compared."""
    values: Mapping[str, Tensor] = effective(session.values, run.assigned)
    values = doubled(values) if factor != 1.0 else values
    values = permuted(values, session.case) if reverse else values
    # Values that were expanded are so already; laid out so once more they would lose the factor.
    assigned = tuple((tensor, layout) for tensor, layout in run.assigned if layout != "expanded")
    outputs = outputs_of(session.case, session.target.outputs, values)
    inputs = session.placed({**derived(session, values), **values, **outputs}, assigned)
    trace = accepted(session, inputs)
    assert run.measured is not None
    first = run.measured
    invariant = agreement(key, session.case, first.trace, trace, first.comparison, factor=factor, reverse=reverse)
    if invariant.holds:
        return invariant, None
    what = " and ".join((["dO doubled"] if factor != 1.0 else []) + (["heads reversed"] if reverse else []))
    return invariant, Run(f"{run.layout}, {what}", assigned, measure(session, inputs, trace), None)
