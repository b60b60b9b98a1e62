"""Chains the stages: probe(case, target) -> Report."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from .cases.case import Case
from .cases.decided import values_of
from .cases.draw import draw
from .cases.layouts import run_name
from .cases.saved import Saved
from .diagnosing.why import Reasons, reasons_of
from .failures import Refusal
from .judging.unshown import unshown
from .probing.insides import with_insides
from .probing.receipt import environment, notes_of, provenance
from .probing.runs import layouts_of, pinned, runs_of, with_strays
from .probing.session import Session, Tick, dots_of, refuse_out_of_range, silent
from .probing.symmetries import with_symmetries
from .running.taps import parse_tap
from .targets.find import Target
from .verdict import MISMATCH, Report, Run


def probe(
    case: Case,
    target: Target,
    *,
    reference: Target | None = None,
    saved: Saved | None = None,
    reproduce: str = "",
    why: bool = True,
    tick: Tick = silent,
    told: Callable[[Report], object] = lambda so_far: None,
    given: Collection[str] = (),
    first: Callable[[Run], None] = lambda run: None,
    found_out: tuple[str, ...] = (),
) -> Report:
    """Runs a target on a case under each layout, beside the reference, and says where it goes wrong, and why.

    Args:
        case: with its device resolved to "cpu" or "cuda".
        reference: a user's own, in place of the built-in one; audited by the identities that it should keep.
        saved: the values of a case that has `inputs`; without, they are drawn.
        reproduce: the command line to print.
        why: whether a reason is sought where it is wrong, by hypotheses and by running the target again.
        told: given the report of what is measured so far, after each layout, and after the second runs.
        given: the options that somebody gave; of each it is said if this case cannot show it.
        first: told of the first run, before there are others.
        found_out: sentences about the case that no option said.

    Raises:
        UsageFailure: the case uses what the target does not take, or a right kernel overflows on its values.
        Refusal: the target raised on purpose under every layout, so that nothing could be compared.
        TargetFailure: the target could not be run.
        ReferenceFailure: the reference breaks an identity that it should keep.
    """
    session = Session(case, target, reference, tick, tuple(parse_tap(word) for word in case.taps), saved)
    values = draw(case) if saved is None else values_of(saved, case)
    session.values = {name: value.to(case.device) for name, value in values.items()}
    refuse_out_of_range(session)
    runs: list[Run] = []
    for run in (run for assigned in layouts_of(case) for run in runs_of(session, assigned)):
        runs.append(run)
        if len(runs) == 1:
            first(run)
        _tell(told, session, runs, reproduce)
    runs = with_symmetries(session, runs)
    runs = with_strays(session, with_insides(session, runs))
    if not any(run.measured for run in runs):
        words = "; ".join(". ".join([f"{run.layout}: {run.skipped}", *_worst_of(run)]) for run in runs)
        raise Refusal(f"target {target.name!r} refused every layout ({words}): nothing was compared")
    _tell(told, session, runs, reproduce)
    session.command = tuple(shlex.split(reproduce))
    with session.timed("diagnose"):
        reasons = reasons_of(*_as_it_failed(session, runs)) if why else Reasons()
    report, notes = _so_far(session, runs, reproduce), notes_of(session, runs)
    notes = (*found_out, *notes, *(_not_shown(session, runs, given) if report.failing is None else ()))
    return replace(report, notes=notes, diagnoses=reasons.diagnoses, known=reasons.known)


def _worst_of(run: Run) -> list[str]:
    return [stray.sentence for stray in run.strays[:1]]


def _as_it_failed(session: Session, runs: Sequence[Run]) -> tuple[Session, list[Run]]:
    """The session with the configuration in which the first wrong run was made, and the runs in that one."""
    failing = next((run for run in runs if run.verdict == MISMATCH), None)
    if failing is not None and failing.layout in session.configured:
        alone = replace(failing, layout=run_name(failing.assigned))
        return pinned(session, *session.configured[failing.layout]), [alone]
    return session, [run for run in runs if run.layout not in session.configured]


def _not_shown(session: Session, runs: Sequence[Run], given: Collection[str]) -> list[str]:
    """Of each option below the budget, that a match says nothing of it. What goes wrong in here is told alone."""
    measured = next(run.measured for run in runs if run.measured is not None)
    precision = measured.comparison.precision
    try:
        with session.timed("compare"):
            return list(unshown(session.case, measured.x, measured.trace, precision, given))
    except Exception as error:
        fault = f"{type(error).__name__}: {error}"
        return [f"which options this case shows could not be found out, by a fault of gradprobe: {fault}"]


def _tell(told: Callable[[Report], object], session: Session, runs: Sequence[Run], reproduce: str) -> None:
    if any(run.measured for run in runs):
        told(_so_far(session, runs, reproduce))


def _so_far(session: Session, runs: Sequence[Run], reproduce: str) -> Report:
    """What was measured, without a reason."""
    return Report(
        case=replace(session.case, dots=dots_of(session)),
        provenance=provenance(session),
        environment=environment(session.case.device),
        runs=tuple(runs),
        notes=(),
        reproduce=reproduce,
        seconds=session.seconds,
    )
