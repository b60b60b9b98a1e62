"""What the dataflow of a failing run shows: the load that reads other elements than it should, or the first wrong
value.

Nothing in here is a hypothesis: each operation of an interpreted kernel was seen, with what it worked on and what it
made. So a diagnosis of the dataflow gives the line; a hypothesis that fits gives the name.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from ..model.failures import Failure, fault_words
from ..model.intermediates import SUBEXPRESSIONS
from ..model.layout_run import INHERITED, MISMATCH
from ..model.mechanisms import door, gathered
from ..numerics.evidence import DataflowEvidence, LayoutRun, Measured
from ..probing.experiment import Experiment
from .explainers.diagnoses import Suspect, diagnoses_of
from .explainers.misread import misread, transposed
from .explainers.sums import never_stored, nothing_summed, pairs
from .explainers.values import other_factors, wrong_values
from .follow import FollowedRun, followed_run


@door("dataflow", lambda *args: DataflowEvidence())
def seen_in_dataflow(
    experiment: Experiment, run: LayoutRun, read: Callable[[FollowedRun], Measured | None] = lambda followed: None
) -> DataflowEvidence:
    """What goes wrong by itself in one failing run; nothing of packed sequences.

    A fault of gradprobe in here is told as what kept it from being followed.

    Args:
        read: what its kernels hold, judged.
    """
    watched, case = DataflowEvidence(), experiment.case
    if case.cu_seqlens_q or run.measured is None:
        return watched
    findings = run.measured.comparison.findings.items()
    wrong = tuple(name for name, finding in findings if finding.status in (MISMATCH, INHERITED))
    try:
        if experiment.is_cuda:
            from . import addresses

            visited = addresses.visited_run(experiment, run.assigned)
            found = gathered("dataflow/cuda", addresses.misread, visited, wrong) if visited is not None else []
            return DataflowEvidence(tuple(diagnoses_of(found, case.family)))
        if (followed := followed_run(experiment, run.assigned)) is not None:
            watched = DataflowEvidence(failures=tuple(followed.flow.failures))
            shown = None if watched.failures else read(followed)
            seen = diagnoses_of(suspects(followed, wrong), case.family)
            watched = DataflowEvidence(tuple(seen), watched.failures, shown)
    except Failure:
        return watched
    except Exception as error:
        return DataflowEvidence(failures=(*watched.failures, fault_words(error)))
    return watched


# --- what explains a run


def _of_forward(run: FollowedRun) -> Iterator[Suspect]:
    """What leads to a wrong O; of its gradients only what is right and never masked, which is no doing of O."""
    if "O" not in run.wrong or len(run.wrong) == 1:
        return
    found = suspects(run, ["O"])
    yield from found
    sites = {suspect.site for suspect in found}
    for suspect in gathered("dataflow/values", wrong_values, run) if found else ():
        if suspect.is_open and suspect.site not in sites:
            yield suspect


# When one is asked, and whether any other is asked once it has spoken.
ALONE, FIRST, BESIDE, UNSURE = "alone", "where none has spoken", "always", "where none is sure"
EXPLAINERS: tuple[tuple[str, str, Callable[[FollowedRun], Iterator[Suspect]]], ...] = (
    (ALONE, "dataflow/misread", transposed),  # a tile that lies across disagrees in every index: it would be misread
    (ALONE, "dataflow/misread", misread),  # of other elements everything is wrong, and each operation right
    (ALONE, "dataflow/sums", never_stored),  # what is stored nowhere has no value that could be wrong
    (ALONE, "dataflow", _of_forward),  # gradients are made of O: what they show is its doing
    (FIRST, "dataflow/values", wrong_values),  # a value that is wrong by itself
    (BESIDE, "dataflow/values", other_factors),  # and a result with another constant, which no value shows
    (BESIDE, "dataflow/sums", pairs),  # what is left out of a sum makes no value in it wrong
    (UNSURE, "dataflow/sums", nothing_summed),  # where nothing at all is summed, nothing else can be seen
    (FIRST, "dataflow/values", partial(other_factors, is_of_host=True)),  # host code may multiply yet what it makes
)
"""What explains a run, by mechanism, in the order in which they are asked."""

# Running maxima and sums are no more of a name than none: their steps are wrong together.
_UNTOLD = {"", *(row.name for row in SUBEXPRESSIONS if row.into == ("LSE", "O"))}


def suspects(run: FollowedRun, wrong: Sequence[str]) -> list[Suspect]:
    """What goes wrong by itself on the way to the results that are wrong, the first first."""
    run, found = dataclasses.replace(run, wrong=tuple(wrong)), list[Suspect]()
    for when, name, explain in EXPLAINERS:
        is_sure = any(suspect.is_sure for suspect in found)
        if (found and when == FIRST) or (is_sure and when == UNSURE):
            continue
        for suspect in gathered(name, explain, run):
            # What is left out beside another cause that is sure is not, as long as no hypothesis predicts it.
            is_beside = is_sure and explain is pairs
            found.append(dataclasses.replace(suspect, is_sure=False) if is_beside else suspect)
        if found and when == ALONE:
            break
    # A value whose name is known says more than one that is nothing that is known.
    return sorted(found, key=lambda suspect: (not suspect.is_sure, suspect.name in _UNTOLD))
