"""The runs of a target: which layouts, and each of them, repeated where that is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from ..cases.case import Case
from ..cases.guards import same_bits
from ..cases.layouts import UNIT_RUN, Assigned, Inputs, planned_runs, run_name
from ..failures import TargetFailure, UsageFailure
from ..judging.measured import Measured
from ..judging.strays import RACE, UNWRITTEN, Stray, telling, worst_first
from ..judging.symmetry import agreement
from ..verdict import Run
from .session import Session, inputs_of, measure, watched_run

if TYPE_CHECKING:
    from torch import Tensor


def layouts_of(case: Case) -> tuple[Assigned, ...]:
    """What each run assigns."""
    return planned_runs((case.layouts,) if case.layouts else case.runs, are_saved=case.inputs is not None)


def runs_of(session: Session, assigned: Assigned) -> Iterator[Run]:
    """One layout; and where distinct strides are refused or never reach the kernels, those with the last one 1.

    Each as soon as it is measured.
    """
    run = _run(session, assigned)
    asked = session.case.layouts or session.case.runs
    wants_unit = run.layout == "distinct" and not asked and (run.measured is None or _copied(session))
    yield run
    if session.case.configs == "all" and assigned == layouts_of(session.case)[0]:
        yield from _in_other_configurations(session, assigned)
    if wants_unit:
        yield _run(session, UNIT_RUN)


def _in_other_configurations(session: Session, assigned: Assigned) -> Iterator[Run]:
    """The run once more in each other configuration of each autotuned kernel, which its name tells."""
    for first in session.outcomes[-1].configurations:
        for number in first.others:
            before = len(session.strays)
            run = _run(pinned(session, first.kernel, number), assigned)
            ran = session.outcomes[-1].configurations
            came = next((one for one in ran if (one.kernel, one.number) == (first.kernel, number)), None)
            if came is None:
                session.notes.append(f"{first.kernel}: configuration {number} of {first.count} does not fit")
            else:
                title = f"{run.layout}, {came.kernel} with configuration {number} of {came.count} ({came.words})"
                session.configured[title] = (came.kernel, number)
                session.strays[before:] = [(title, strays) for _, strays in session.strays[before:]]
                yield replace(run, layout=title)


def pinned(session: Session, kernel: str, number: int) -> Session:
    """The session with one configuration of one autotuned kernel."""
    return replace(session, case=replace(session.case, pinned=((kernel, number),)))


def _copied(session: Session) -> bool:
    """Whether kernels were given copies in the latest run, of inputs that they took as they lay in the first.

    Many wrappers make a tensor contiguous where its last stride is not 1: they look right whatever strides they mix up.
    """
    return bool(session.outcomes[0].taken - session.outcomes[-1].taken)


def _run(session: Session, assigned: Assigned) -> Run:
    inputs = inputs_of(session, session.values, assigned)
    run = watched_run(session, inputs)
    if run.outcome.trace is None:
        return Run(inputs.layout, assigned, None, run.outcome.refused, strays=telling(run.strays, False))
    measured = measure(session, inputs, run.outcome.trace)
    measured, strays = _in_other_orders(session, assigned, measured, list(run.strays))
    for number in range(1, session.case.repeat):
        again = _poisoned(session, number)
        # Laid out afresh: a target may have written over its inputs.
        measured = _repeated(again, inputs_of(again, session.values, assigned), measured)
    return Run(inputs.layout, assigned, measured, None, strays=telling(strays, _holds_non_finite(measured)))


def with_strays(session: Session, runs: list[Run]) -> list[Run]:
    """The runs, each with what repeats of it and looks inside, which are runs in its layout too, did to memory."""
    return [replace(run, strays=_with_those_of(session, run)) if run.measured else run for run in runs]


def _with_those_of(session: Session, run: Run) -> tuple[Stray, ...]:
    found = {stray.identity: stray for stray in run.strays}
    told = {stray.place_of_access for stray in run.strays}
    for layout, strays in session.strays:
        for stray in strays if layout == run.layout else ():
            # Whether memory without values shows was decided by the run's own results. Looks inside have more batches,
            # and what leaves a tensor of the case meets another program there: it is the same fault, by another name.
            if stray.kind != UNWRITTEN and not (stray.kind == RACE and stray.place_of_access in told):
                found.setdefault(stray.identity, stray)
    return tuple(worst_first(found.values()))


def _holds_non_finite(measured: Measured) -> bool:
    return any(bool(finding.non_finite) for finding in measured.comparison.findings.values())


def _in_other_orders(
    session: Session, assigned: Assigned, measured: Measured, strays: list[Stray]
) -> tuple[Measured, tuple[Stray, ...]]:
    """The run, or one in another order of threads and blocks that went wrong where it did not; and what each showed.

    Raises:
        UsageFailure: the target has no kernels whose threads could be ordered.
    """
    first, differing = measured.trace, dict[str, int]()
    for seed in range(1, session.case.schedules + 1):
        run = watched_run(session, inputs_of(session, session.values, assigned), seed)
        outcome = run.outcome
        if outcome.trace is None or outcome.cuda != "cuda-on-cpu":
            raise UsageFailure(
                f"--schedules: target {session.target.name!r} launched no CUDA kernel on the CPU",
                "it orders the threads of kernels that gradprobe.cuda loads, with --device cpu",
            )
        strays += [stray for stray in run.strays if stray.identity not in {one.identity for one in strays}]
        other = [name for name, value in first.values.items() if not _is_same(outcome.trace.values[name], value)]
        differing |= {name: differing.get(name, 0) + 1 for name in other}
        if other and measured.matches:
            measured = measure(session, inputs_of(session, session.values, assigned), outcome.trace)
    _note_orders(session, run_name(assigned), differing)
    return measured, tuple(strays)


def _is_same(value: Tensor, other: Tensor) -> bool:
    return value.dtype == other.dtype and bool(same_bits(value, other).all())


def _note_orders(session: Session, layout: str, differing: Mapping[str, int]) -> None:
    count = session.case.schedules
    for name, times in differing.items():
        session.notes.append(
            f"{layout}: {name} depends on the order of threads and blocks: {times} of {count} gave other bits"
        )
    if count and not differing:
        session.notes.append(f"{layout}: the same bits in {count} other orders of threads and blocks")


def _poisoned(session: Session, number: int) -> Session:
    """The session of a repeat: in every second one memory without values holds 7.0, which a sum takes for a number."""
    return replace(session, unwritten=7.0) if session.case.poison and number % 2 else session


def _repeated(session: Session, inputs: Inputs, measured: Measured) -> Measured:
    """The first run, or the repeat that went wrong where the first did not."""
    trace = watched_run(session, inputs).outcome.trace
    if trace is None:
        raise TargetFailure(f"target {session.target.name!r} refused {inputs.layout} in a repeat, after accepting it")
    again = measure(session, inputs, trace)
    worse = again if measured.matches and not again.matches else measured
    if not summable(measured):
        return worse
    invariant = agreement("repeat", session.case, measured.trace, trace, measured.comparison)
    return replace(worse, invariants=(*worse.invariants, invariant))


def summable(measured: Measured) -> bool:
    """Whether two runs can be held against each other: not where only P, dP or dS, which are quadratic, came."""
    return bool(measured.comparison.bounds.keys() & measured.trace.values.keys())
