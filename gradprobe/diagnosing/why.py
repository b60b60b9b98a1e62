"""Runs -> Reasons: the diagnoses of the first failing run, best first, and what is known where none fits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..diagnosis import CONSISTENT, NAMED, Diagnosis
from ..naming import is_named_after
from ..probing.session import Session, inputs_of
from ..spans import plural
from ..verdict import Run
from .behaviour.again import Again
from .behaviour.compiled import right_in_another_file, right_in_the_interpreter, right_without_pipelining
from .behaviour.fills import reads_what_was_never_written
from .behaviour.repeats import differs_from_run_to_run, wrong_in_the_first_call_alone
from .diagnose import Tested, ranked
from .lines import with_lines
from .observed import Observed, observed
from .shape import known
from .strays import of_strays

# Elements of all score matrices together beyond which no hypothesis is tried: each takes an evaluation or two.
_MOST_SCORES = 1 << 22
RACE_CLASS = "RACE"
# Tried one after another until one explains what is wrong.
_BEHAVIOURS: tuple[Callable[[Again], Diagnosis | None], ...] = (
    right_in_another_file, wrong_in_the_first_call_alone, differs_from_run_to_run, reads_what_was_never_written,
    right_without_pipelining, right_in_the_interpreter,
)  # fmt: skip


@dataclass(frozen=True)
class Reasons:
    """Why a target is wrong, as far as it was found out."""

    diagnoses: tuple[Diagnosis, ...] = ()
    """Best first."""
    known: tuple[str, ...] = ()
    """Sentences about the error, where no hypothesis is named."""


def reasons_of(session: Session, runs: Sequence[Run]) -> Reasons:
    """Why the first of some runs with a wrong element went wrong; and what is told of memory."""
    strays = of_strays([stray for run in runs for stray in run.strays])
    run = next((run for run in runs if run.measured is not None and not run.measured.comparison.matches), None)
    if run is None or run.measured is None:
        return Reasons(strays)
    case = session.case
    if case.batch * case.heads * case.seqlen_q * case.seqlen_k > _MOST_SCORES or session.reference is not None:
        return Reasons(strays, _not_tried(session))
    seen = observed(case, run.measured, inputs_of(session, session.values, run.assigned).tensors)
    found = _tested(session, seen)
    if not found or found[0].explained < NAMED:
        found = [*_behaving(Again(session, run.assigned, seen)), *found]
    found = _in_order(found, strays, seen.own)
    return Reasons(tuple(found), () if found and found[0].explained >= NAMED else tuple(known(seen)))


def _tested(session: Session, seen: Observed) -> list[Diagnosis]:
    """The hypotheses that explain half or more, each with the next best, and with its lines."""
    tested = ranked(seen)
    pairs = zip(tested, [*tested[1:], None], strict=False)
    return [
        with_lines(session, seen, one, _diagnosis(one, second, seen))
        for one, second in pairs if one.explained >= CONSISTENT
    ]  # fmt: skip


def _not_tried(session: Session) -> tuple[str, ...]:
    if session.reference is not None:
        return ("no hypothesis was tried: each is a change of the built-in reference, and another one was given",)
    return ("no hypothesis was tried: the case is too large for it; gradprobe shrink finds a small one",)


def _behaving(again: Again) -> list[Diagnosis]:
    """What running it again shows: the first explanation of nearly all, or those of a part."""
    found = []
    for behaviour in _BEHAVIOURS:
        diagnosis = behaviour(again)
        if diagnosis is not None and diagnosis.explained >= NAMED:
            return [diagnosis]
        found += [diagnosis] if diagnosis is not None and diagnosis.explained >= CONSISTENT else []
    return found


def _in_order(found: Sequence[Diagnosis], strays: Sequence[Diagnosis], own: Sequence[str]) -> list[Diagnosis]:
    """What explains most; but what was seen of memory comes before numbers that only depend on it.

    A race always does; an access outside and a read of what nothing wrote do in the kernels of what is wrong, unless a
    named fault reads that very tensor.
    """
    named = [one for one in found if one.explained >= NAMED]
    arrays = {one.fault.partition("/")[2] for one in strays}
    explains_them = any(one.fault.partition("/")[2].partition("-")[0] in arrays for one in named[:1])
    seen = [one for one in strays if one.fault_class == RACE_CLASS or (not explains_them and _in_kernel_of(one, own))]
    order = [*seen, *named, *(one for one in strays if one not in seen), *found]
    return list(dict.fromkeys(order))


def _in_kernel_of(diagnosis: Diagnosis, own: Sequence[str]) -> bool:
    """Whether a finding lies in a kernel that computes one of these; P, dP and dS are computed in several."""
    anywhere = bool({"P", "dP", "dS"} & set(own))
    return anywhere or any(is_named_after(where.kernel, name) for where in diagnosis.where for name in own)


def _diagnosis(tested: Tested, runner_up: Tested | None, seen: Observed) -> Diagnosis:
    first = tested.hypotheses[0]
    names = seen.wrong_names
    wrong = sum(seen.wrong(name) for name in names)
    share = f"explains {tested.explained:.0%} of {wrong:,} wrong elements in {plural(len(names), 'intermediate')}"
    second = "no other hypothesis comes near it" if runner_up is None else (
        f"runner-up: {runner_up.hypotheses[0].summary}, {runner_up.explained:.0%}"
    )  # fmt: skip
    return Diagnosis(
        first.fault,
        first.fault_class,
        "; and ".join(one.summary for one in tested.hypotheses),
        tested.explained,
        (f"{share}, and what is right stays right; {second}", *first.evidence),
        fix="; ".join(dict.fromkeys(one.fix for one in tested.hypotheses if one.fix)),
    )
