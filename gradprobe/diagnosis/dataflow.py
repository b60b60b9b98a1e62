"""What the dataflow of a failing run shows: the load that reads other elements than it should, or the first wrong
value.

Nothing in here is a hypothesis: each operation of an interpreted kernel was seen, with what it worked on and what it
made. So a diagnosis of the dataflow gives the line; a hypothesis that fits gives the name.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial

from msgspec.structs import replace

from ..model.failures import Failure, fault_words
from ..model.intermediates import SUBEXPRESSIONS
from ..model.layout_run import INHERITED, MISMATCH
from ..model.mechanisms import door, gathered
from ..model.report import Diagnosis, Where
from ..numerics.evidence import DataflowEvidence, LayoutRun, Measured
from ..probing.experiment import Experiment
from .explainers.diagnoses import LOST, Suspect, diagnoses_of
from .explainers.misread import misread, transposed
from .explainers.sums import never_stored, nothing_summed, pairs
from .explainers.values import not_numbers, other_factors, wrong_values
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
    (FIRST, "dataflow/values", not_numbers),  # everything that NaN enters is wrong
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


# --- beside what hypotheses name


# What was seen in memory, at its own lines; and what the dataflow shows of addresses.
_OF_MEMORY, _MISREAD = ("outside", "race", "unwritten"), ("load", "store", "unstored")


def with_dataflow(named: Sequence[Diagnosis], seen: Sequence[Diagnosis], read: Collection[str] = ()) -> list[Diagnosis]:
    """The causes that hypotheses name, with the lines that the dataflow shows; where none is named, what it shows.

    Args:
        read: the faults whose lines were read off the source, at which an address is made: these stay the first.
    """
    of_pairs = [cause for cause in seen if cause.kind == "pairs"]
    if named and named[0].kind == "tile" and of_pairs:
        seen = of_pairs  # what is left out says where; the values that it makes wrong do not
    else:
        seen = [cause for cause in seen if cause.is_named or cause not in of_pairs] or seen
    if not named or not seen:
        return [*named, *seen]
    first, *others = named
    never = [cause for cause in of_pairs if cause.is_named and cause.fault_class != LOST]
    # Tiles that are lost may make anything wrong; heads of a group and a program's share that are, their sums alone.
    if never and first.fault_class == LOST and (not first.says_wrong or "P" in first.says_wrong):
        return [*never, *others]  # it looks the same, and nothing was lost
    lines = _of_each_kernel_first([where for cause in seen for where in cause.where])
    if first.where and (first.fault in read or first.kind in _OF_MEMORY):
        # One line may have several places, each with an edit.
        lines, told = first.where, {(where.file, where.line) for where in first.where}
        for where in (where for cause in seen if cause.kind in _MISREAD for where in cause.where):
            if (where.file, where.line) not in told:
                told.add((where.file, where.line))
                lines = (*lines, where)
    elif first.kind in ("stride", "index"):  # a pointer's line in the kernel comes before the accesses that it misleads
        lines = tuple(sorted(lines, key=lambda where: where.note != "its address" or where.function != ""))
    reached = None if first.misread else next((cause.reached for cause in seen if cause.reached), None)
    evidence = (*first.evidence, *(sentence for cause in seen for sentence in cause.evidence))
    return [replace(first, evidence=evidence, where=lines, reached=reached), *others]


def _of_each_kernel_first(lines: Sequence[Where]) -> tuple[Where, ...]:
    """Lines, each once: before all others the first one of each kernel, at which something goes wrong in it."""
    first = {where.kernel: where for where in reversed(lines)}
    return tuple(dict.fromkeys([*(where for where in lines if where is first[where.kernel]), *lines]))
