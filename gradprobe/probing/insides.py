"""Looks into a black box under the layouts that tell most."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from ..cases.case import Case
from ..cases.layouts import AS_SAVED, Assigned, place
from ..cases.outputs import outputs_of
from ..cases.placement import for_more_batches, repeats
from ..failures import TargetFailure
from ..inside.look import Examiner, look_inside
from ..inside.recover import obstacle, recoverable
from ..running.trace import Trace
from ..verdict import MISMATCH, Run
from .session import Session, accepted, derived, inputs_of, measure

if TYPE_CHECKING:
    from torch import Tensor


def with_insides(session: Session, runs: list[Run]) -> list[Run]:
    """Looks into a black box under the first layout, and under the first that fails where that is another.

    Where a run is right and its one-hot problems are not, these stand behind the others as a run of their own.
    """
    chosen = [runs.index(run) for run in runs if run.measured is not None][:1]
    chosen += [runs.index(run) for run in runs if run.verdict == MISMATCH and run.layout not in session.configured][:1]
    looked = [_with_inside(session, run) if at in chosen else run for at, run in enumerate(runs)]
    return [_without_one_hots(run) for run in looked] + [_of_one_hots(run) for run in looked if _is_wrong_inside(run)]


def _is_wrong_inside(run: Run) -> bool:
    """Whether the target exports what is wrong in one-hot problems alone."""
    if run.measured is None or run.inside is None or not run.measured.comparison.matches:
        return False
    return not run.inside.measured.comparison.matches


def _without_one_hots(run: Run) -> Run:
    return replace(run, inside=None) if _is_wrong_inside(run) else run


def _of_one_hots(run: Run) -> Run:
    assert run.inside is not None
    measured = run.inside.measured
    return Run(f"{run.layout}, one-hot inputs", run.assigned, measured, None, replace(run.inside, shown=measured))


def _with_inside(session: Session, run: Run) -> Run:
    """A run whose target was looked into, where it can be: a layout of repeated values holds no one-hot rows."""
    if not session.case.recover or run.measured is None or not recoverable(run.measured.trace):
        return run
    if words := obstacle(session.case, session.values):
        session.notes += [f"P and dS are not recovered: {words}"] if not session.notes else []
        return run
    if any(layout == "expanded" for _, layout in run.assigned) or _repeats_as_saved(session, run.assigned):
        words = f"P and dS are not recovered in {run.layout}: a layout that repeats values holds no one-hot rows"
        session.notes += [words] if session.case.layouts or session.case.runs else []
        return run
    examiner = Examiner(
        session.case,
        lambda assigned: lambda case, values, first: _answer(session, case, values, first, assigned),
        lambda values, trace, recovery=None, *, coarse=False: measure(
            session, place(values, ()), trace, recovery, coarse=coarse
        ),
        run.measured,
        inputs_of(session, session.values, run.assigned).tensors,
    )
    try:
        with session.timed("compare"):
            return replace(run, inside=look_inside(examiner, session.values, run.assigned))
    except TargetFailure as failure:
        # The run itself is measured, and stands.
        session.notes.append(f"P and dS are not recovered in {run.layout}: {failure}")
        return run


def _repeats_as_saved(session: Session, assigned: Assigned) -> bool:
    if session.saved is None or AS_SAVED not in dict(assigned).values():
        return False
    shapes = {name: tuple(value.shape) for name, value in session.values.items()}
    return any(repeats(shapes[name], place) for name, place in session.saved.placements.items())


def _answer(
    session: Session, case: Case, values: Mapping[str, Tensor], first: Mapping[str, Tensor], assigned: Assigned
) -> Trace:
    """The target's results on several probes; those of the first in O, LSE and delta are those of all."""
    times = case.batch // session.case.batch
    of_first = derived(session, first)
    of_all = {name: value.repeat(times, *[1] * (value.dim() - 1)) for name, value in of_first.items()}
    everything = {**values, **of_all, **outputs_of(case, session.target.outputs, values)}
    shapes = {name: tuple(value.shape) for name, value in everything.items()}
    placements = for_more_batches(session.saved.placements, shapes) if session.saved else None
    inputs = place(everything, assigned, placements, shapes=case.shapes)
    # O and LSE of a file are none of these problems'.
    return accepted(replace(session, case=case, taps=(), saved=None), inputs)
