"""A smaller case that fails in the same way, where the one asked for has too many scores for hypotheses."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from ..frontends import INTERPRETED
from ..inputs.options import flags
from ..model.assignment import AS_SAVED, Assigned
from ..model.case import Case
from ..model.failures import Failure
from ..model.layout_run import MISMATCH
from ..model.mechanisms import door
from ..numerics.evidence import LayoutRun, Measured
from ..probing.experiment import Experiment, experiment_of
from ..probing.runs import RunRecord, outcomes_of, records_of
from .cases import cut_cases

# Elements of all score matrices together up to which hypotheses are tried: each takes an evaluation or two.
MOST_SCORES = 1 << 18
# Lengths are shortened to one of these and a remainder.
_SPANS = (64, 128, 256)
# Batches and key heads: two show what one hides. The rest of the time goes to one of each, and to longer sequences.
_COUNTS = ((2, 2), (1, 2), (1, 1))


@dataclass(frozen=True)
class Smaller:
    """A smaller case that fails in the same way: its runs in the layouts that failed, and what it is, in words."""

    experiment: Experiment
    runs: list[LayoutRun]
    words: str


@door("smaller")
def smaller_failing(experiment: Experiment, failing: Sequence[LayoutRun]) -> Smaller | None:
    """The first smaller case in which the same result is the first wrong one, in the first layout that failed."""
    if experiment.case.mask == "given":  # nobody knows of which kind it is
        return None
    # Few faults depend on the values of a file; a layout of these shows what drawn values in another one show.
    laid = [
        tuple((of, "distinct" if it == AS_SAVED else it) for of, it in run.assigned)
        for run in failing
    ]
    first, *others = dict.fromkeys(laid)
    of_file = " of drawn values" if experiment.case.inputs is not None else ""
    for case in cut_cases(replace(experiment.case, inputs=None), _SPANS, _COUNTS):
        if case.scores > MOST_SCORES:
            continue
        try:
            ran, runs = _run(experiment_of(case, experiment.target, experiment.reference), [first])
        except Failure:  # such as a length that the target does not take
            continue
        measured, wrong = [run.measured for run in runs if run.measured], failing[0].measured
        if wrong is not None and any(_fails_alike(each, wrong) for each in measured):
            unseen = replace(
                ran, case=replace(ran.case, recover=False)
            )  # into the others the target is not looked
            with suppress(Failure):
                runs += _run(unseen, others)[1] if others else []
            return Smaller(
                ran,
                runs,
                f"a smaller case{of_file} that fails in the same way: {size_in_words(case)}",
            )
    return None


def _run(experiment: Experiment, layouts: Sequence[Assigned]) -> tuple[Experiment, list[LayoutRun]]:
    """The runs in some layouts, and the experiment with what they showed of the target."""
    case = replace(experiment.case, layouts=(), runs=tuple(layouts), repeat=1)
    experiment = replace(experiment, case=case, first=None, backends=frozenset())
    records = [*records_of(experiment)]
    experiment = experiment.after(outcomes_of(records))
    return experiment, [record.run for record in with_intermediates(experiment, records)]


def with_intermediates(experiment: Experiment, records: list[RunRecord]) -> list[RunRecord]:
    """The records with P, dP, dS and delta: seen in kernels that are interpreted, else recovered."""
    if INTERPRETED in experiment.backends:
        from .kernel_values import (
            with_kernel_values,
        )  # it imports Triton, as the run in the interpreter surely did

        records, is_shown = with_kernel_values(experiment, records)
        if is_shown:
            return records
    from ..probing.insides import with_insides

    return with_insides(experiment, records)


def _fails_alike(measured: Measured, failing: Measured) -> bool:
    """Whether the first result that is wrong by itself is the same, among what both runs returned."""
    here, there = _wrong(measured), _wrong(failing)
    for name in here:
        small, large = measured.trace.values.get(name), failing.trace.values.get(name)
        if small is not None and not small.any() and (large is None or large.any()):
            return False  # where a fault takes all of a short case it leaves no trace of what it is
    return bool(there) and here[:1] == there[:1]


def _wrong(measured: Measured) -> list[str]:
    return [
        name for name, finding in measured.comparison.findings.items() if finding.status == MISMATCH
    ]


def size_in_words(case: Case) -> str:
    """The options that give a case its size."""
    rows, keys, ends, ends_of_keys = (
        case.seqlen_q,
        case.seqlen_k,
        case.cu_seqlens_q,
        case.cu_seqlens_k,
    )
    sizes: dict[str, object] = {"batch": None if ends else case.batch, "heads": case.heads}
    sizes["kv_heads"] = case.kv_heads if case.kv_heads != case.heads else None
    if ends:
        sizes |= {
            "cu_seqlens": _listed(ends),
            "cu_seqlens_k": _listed(ends_of_keys) if ends_of_keys != ends else None,
        }
    else:
        sizes |= {"seqlen": rows} if rows == keys else {"seqlen_q": rows, "seqlen_k": keys}
    return " ".join(flags({**sizes, "seqlens": _listed(case.seqlens)}))


def _listed(numbers: Sequence[float] | None) -> str | None:
    return None if numbers is None else ",".join(map(str, numbers))
