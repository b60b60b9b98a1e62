"""A smaller case that fails in the same way, where the one asked for has too many scores for hypotheses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product

from torch import Tensor

from ..inputs.options import flags, with_others
from ..model.assignment import AS_SAVED, Assigned
from ..model.case import Case
from ..model.failures import Failure
from ..model.layout_run import MISMATCH
from ..model.mechanisms import door
from ..numerics.evidence import LayoutRun, Measured
from ..probing.experiment import Experiment, experiment_of
from ..probing.runs import outcomes_of, records_of, with_strays
from .cases import cut

# Elements of all score matrices together up to which hypotheses are tried: each takes an evaluation or two.
MOST_SCORES = 1 << 18
# Lengths are shortened to one of these and a remainder.
_SPANS = (64, 128, 256)
# Batches and key heads: two show what one hides. The rest of the time goes to one of each, and to longer sequences.
_COUNTS = ((2, 2), (1, 2), (1, 1))
# The options that give a case its size.
_SIZES = (
    "batch", "heads", "kv_heads", "seqlen", "seqlen_q", "seqlen_k", "seqlens", "cu_seqlens", "cu_seqlens_k", "tau",
    "inputs",
)  # fmt: skip


@dataclass(frozen=True)
class Smaller:
    """A smaller case that fails in the same way."""

    experiment: Experiment
    runs: list[LayoutRun]
    """Those in the layouts that failed."""
    words: str
    """What is smaller."""


@door("smaller")
def smaller_failing(experiment: Experiment, failing: Sequence[LayoutRun]) -> Smaller | None:
    """The first of some smaller cases in which the same result is the first wrong one, in the first layout that failed.

    Returns:
        It, run in every layout that failed; None where every case that was tried is right or fails otherwise.
    """
    # A layout of a file's values shows what drawn values in another one show.
    laid = [tuple((of, "distinct" if it == AS_SAVED else it) for of, it in run.assigned) for run in failing]
    first, *others = dict.fromkeys(laid)
    of_file = " of drawn values" if experiment.case.inputs is not None else ""
    for case in _smaller(experiment.case):
        small = _of_case(experiment, case)
        try:
            ran, runs = _run(small, [first])
        except Failure:  # such as a length that the target does not take
            continue
        if any(run.measured and _fails_alike(run.measured, failing[0]) for run in runs):
            unseen = replace(ran, case=replace(ran.case, recover=False))  # into the others the target is not looked
            with suppress(Failure):
                runs += _run(unseen, others)[1] if others else []
            return Smaller(ran, runs, f"a smaller case{of_file} that fails in the same way: {size_in_words(case)}")
    return None


def _smaller(case: Case) -> list[Case]:
    """Cases of the same options, the quickest first. Values of a file are drawn instead: few faults depend on them."""
    if case.mask == "given":  # nobody knows of which kind it is
        return []
    drawn = replace(case, inputs=None)
    found = dict.fromkeys(cut(drawn, span, *counts) for span, counts in product(_SPANS, _COUNTS))
    return [small for small in found if small != drawn and small.scores <= MOST_SCORES]


def _of_case(experiment: Experiment, case: Case) -> Experiment:
    """The experiment in another case of its size, with the command line that repeats that."""
    command = with_others(experiment.command, _SIZES, {**_sizes(case), "tau": _listed(case.tau)})
    return experiment_of(case, experiment.target, experiment.reference, command=command)


def _run(experiment: Experiment, layouts: Sequence[Assigned]) -> tuple[Experiment, list[LayoutRun]]:
    """The runs in some layouts, and the experiment with what they showed of the target."""
    case = replace(experiment.case, layouts=(), runs=tuple(layouts), repeat=1)
    experiment = replace(experiment, case=case, first=None, backends=frozenset())
    records = list(records_of(experiment))
    experiment = experiment.after(outcomes_of(records))
    from .apart import with_intermediates

    return experiment, with_strays(with_intermediates(experiment, records))


def _fails_alike(measured: Measured, failing: LayoutRun) -> bool:
    """Whether the first result that is wrong by itself is the same, among what both runs returned."""
    assert failing.measured is not None
    here, there = measured.comparison.findings, failing.measured.comparison.findings
    wrong = [[name for name, finding in found.items() if finding.status == MISMATCH] for found in (here, there)]
    if not wrong[1] or wrong[0][:1] != wrong[1][:1]:
        return False
    # Where a fault takes all of a short case it leaves no trace of what it is.
    values, large = measured.trace.values, failing.measured.trace.values
    return all(_is_something(values, name) or not _is_something(large, name) for name in wrong[0])


def _is_something(values: Mapping[str, Tensor], name: str) -> bool:
    """Whether anything but 0 came of a result; what was recovered is not asked."""
    return bool(values[name].any()) if name in values else True


def size_in_words(case: Case) -> str:
    """The options that give a case its size."""
    return " ".join(flags(_sizes(case)))


def _sizes(case: Case) -> dict[str, object]:
    """The options; None of one that says nothing."""
    rows, keys, packed = case.seqlen_q, case.seqlen_k, case.cu_seqlens_q
    lengths: dict[str, object] = {"seqlen": rows} if rows == keys else {"seqlen_q": rows, "seqlen_k": keys}
    if packed is not None:
        of_keys = None if case.cu_seqlens_k == packed else _listed(case.cu_seqlens_k)
        lengths = {"cu_seqlens": _listed(packed), "cu_seqlens_k": of_keys}
    batch, few = case.batch if packed is None else None, case.kv_heads if case.kv_heads != case.heads else None
    return {"batch": batch, "heads": case.heads, "kv_heads": few, **lengths, "seqlens": _listed(case.seqlens)}


def _listed(numbers: Sequence[float] | None) -> str | None:
    return None if numbers is None else ",".join(map(str, numbers))
