"""What the dataflow of a failing run shows."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from operator import attrgetter

from ..model.failures import Failure, fault_words
from ..model.intermediates import SUBEXPRESSIONS
from ..numerics.evidence import DataflowEvidence, LayoutRun, MeasuredRun
from ..probing.experiment import Experiment
from .explainers.diagnoses import Suspect, diagnoses_of
from .explainers.misread import misread_in, transposed
from .explainers.values import never_stored, nothing_summed, other_factors, pairs, wrong_values
from .follow import FollowedRun, followed_run


def seen_in_dataflow(
    experiment: Experiment,
    run: LayoutRun,
    read: Callable[[FollowedRun], MeasuredRun | None] | None = None,
) -> DataflowEvidence:
    watched, family = DataflowEvidence(), experiment.case.family
    if experiment.case.cu_seqlens_q or run.measured is None:
        return watched
    findings = run.measured.comparison.findings
    wrong = [name for name in findings if findings[name].mismatched]
    try:
        if experiment.is_cuda:
            from . import addresses

            visited = addresses.visited_run(experiment, run.assigned)
            if visited is not None:
                found = addresses.misread(visited, wrong)
                watched = DataflowEvidence(tuple(diagnoses_of(found, family)))
        elif (followed := followed_run(experiment, run.assigned)) is not None:
            watched = DataflowEvidence(failures=tuple(followed.flow.failures))
            shown = None if read is None or watched.failures else read(followed)
            seen = diagnoses_of(suspects(followed, wrong), family)
            return replace(watched, seen=tuple(seen), shown=shown)
    except Failure:
        pass
    except Exception as error:
        watched = DataflowEvidence(failures=(*watched.failures, fault_words(error)))
    return watched


# Each alone explains a run, in this order.
ALONE: tuple[Callable[[FollowedRun], Iterable[Suspect]], ...] = (
    # A tile that lies across disagrees in every index: it would be misread.
    transposed,
    # Of other elements everything is wrong, and each operation right.
    lambda run: misread_in(run.flow),
    # What is stored nowhere has no value that could be wrong.
    never_stored,
    # Gradients are made of O: what they show is its doing.
    lambda run: suspects(run, ["O"]) if {"O"} < {*run.wrong} else (),
)
_is_sure = attrgetter("is_sure")
# Running maxima and sums are no more of a name than none: their steps are wrong together.
_UNTOLD = {"", *(row.name for row in SUBEXPRESSIONS if row.into == ("LSE", "O"))}


def suspects(run: FollowedRun, wrong: Sequence[str]) -> list[Suspect]:
    run, found = replace(run, wrong=tuple(wrong)), list[Suspect]()
    for explain in ALONE:
        found = found or [*explain(run)]
    if not found:
        found = [*wrong_values(run)]
        factors = [*other_factors(run)]
        found += filter(_is_sure, factors)
        is_sure = any(map(_is_sure, found))
        # What is left out beside another cause that is sure is not, as long as no hypothesis predicts it.
        for suspect in pairs(run):
            found.append(replace(suspect, is_sure=not is_sure))
        if not any(map(_is_sure, found)):
            found += nothing_summed(run)
        found = found or factors
    # A value whose name is known says more than one that is nothing that is known.
    return sorted(found, key=lambda suspect: (not suspect.is_sure, suspect.name in _UNTOLD))
