"""A smaller case that fails in the same way, where the one asked for has too many scores for hypotheses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product

from torch import Tensor

from ..inputs.options import flags
from ..model.assignment import AS_SAVED, Assigned
from ..model.case import Case
from ..model.failures import Failure
from ..model.layout_run import MISMATCH
from ..model.mechanisms import door
from ..numerics.evidence import LayoutRun, Measured
from ..probing.experiment import Experiment, experiment_of
from ..probing.runs import outcomes_of, records_of
from .cases import cut

# Elements of all score matrices together up to which hypotheses are tried: each takes an evaluation or two.
MOST_SCORES = 1 << 18
# Lengths are shortened to one of these and a remainder.
_SPANS = (64, 128, 256)
# Batches and key heads: two show what one hides. The rest of the time goes to one of each, and to longer sequences.
_COUNTS = ((2, 2), (1, 2), (1, 1))


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
        try:
            ran, runs = _run(experiment_of(case, experiment.target, experiment.reference), [first])
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


def _run(experiment: Experiment, layouts: Sequence[Assigned]) -> tuple[Experiment, list[LayoutRun]]:
    """The runs in some layouts, and the experiment with what they showed of the target."""
    case = replace(experiment.case, layouts=(), runs=tuple(layouts), repeat=1)
    experiment = replace(experiment, case=case, first=None, backends=frozenset())
    records = list(records_of(experiment))
    experiment = experiment.after(outcomes_of(records))
    from .apart import with_intermediates

    return experiment, [record.run for record in with_intermediates(experiment, records)]


def _fails_alike(measured: Measured, failing: LayoutRun) -> bool:
    """Whether the first result that is wrong by itself is the same, among what both runs returned."""
    assert failing.measured is not None
    here, there = _wrong(measured), _wrong(failing.measured)
    if not there or here[:1] != there[:1]:
        return False
    # Where a fault takes all of a short case it leaves no trace of what it is.
    values, large = measured.trace.values, failing.measured.trace.values
    return all(_is_something(values, name) or not _is_something(large, name) for name in here)


def _wrong(measured: Measured) -> list[str]:
    return [name for name, finding in measured.comparison.findings.items() if finding.status == MISMATCH]


def _is_something(values: Mapping[str, Tensor], name: str) -> bool:
    """Whether anything but 0 came of a result; what was recovered is not asked."""
    return name not in values or bool(values[name].any())


def size_in_words(case: Case) -> str:
    """The options that give a case its size."""
    sizes: dict[str, object] = {"heads": case.heads}
    if case.cu_seqlens_q is None:
        sizes = {"batch": case.batch, **sizes}
    if case.kv_heads != case.heads:
        sizes["kv_heads"] = case.kv_heads
    if case.cu_seqlens_q is not None:
        sizes["cu_seqlens"] = _listed(case.cu_seqlens_q)
        if case.cu_seqlens_k != case.cu_seqlens_q:
            sizes["cu_seqlens_k"] = _listed(case.cu_seqlens_k)
    elif case.seqlen_q == case.seqlen_k:
        sizes["seqlen"] = case.seqlen_q
    else:
        sizes |= {"seqlen_q": case.seqlen_q, "seqlen_k": case.seqlen_k}
    return " ".join(flags({**sizes, "seqlens": _listed(case.seqlens)}))


def _listed(numbers: Sequence[float] | None) -> str | None:
    return None if numbers is None else ",".join(map(str, numbers))
