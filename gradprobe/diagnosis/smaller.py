"""A smaller case that fails alike."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from ..frontends import INTERPRETED
from ..inputs.options import flags, length_words
from ..model.assignment import AS_SAVED, Assigned
from ..model.case import Case
from ..model.failures import Failure
from ..model.layout_run import MISMATCH
from ..numerics.evidence import LayoutRun, MeasuredRun
from ..probing.experiment import Experiment, experiment_of
from ..probing.runs import RunRecord, outcomes_of, records_of
from .cases import cut_cases

# Elements of all score matrices together up to which hypotheses are tried: each takes an evaluation or two.
MOST_SCORES = 1 << 18
# Lengths are shortened to one of these and a remainder.
_SPANS = (64, 128, 256)
# Batches and key heads: two show what one hides. The rest of the time goes to one of each, and to longer sequences.
_COUNTS = ((2, 2), (1, 2), (1, 1))


def smaller_failing(
    experiment: Experiment, failing: Sequence[LayoutRun]
) -> tuple[Experiment, list[LayoutRun], str] | None:
    case, wrong = experiment.case, failing[0].measured
    if case.mask == "given" or wrong is None:  # nobody knows of which kind a given mask is
        return None
    # Few faults depend on a file's values; a layout of these shows what drawn values in another one show.
    assigned = [(of, "distinct" if it == AS_SAVED else it) for of, it in failing[0].assigned]
    of_file = " of drawn values" if case.inputs is not None else ""
    for small in cut_cases(replace(case, inputs=None), _SPANS, _COUNTS):
        with suppress(Failure):  # such as a length that the target does not take
            if small.scores <= MOST_SCORES:
                begun = experiment_of(small, experiment.target, experiment.reference)
                ran, (run,) = _run(begun, tuple(assigned))
                if run.measured is not None and _fails_alike(run.measured, wrong):
                    words = f"a smaller case{of_file} that fails in the same way"
                    return ran, [run], f"{words}: {size_in_words(small)}"
    return None


def _run(experiment: Experiment, layout: Assigned) -> tuple[Experiment, list[LayoutRun]]:
    case = replace(experiment.case, layouts=(), runs=(layout,), repeat=1)
    experiment = replace(experiment, case=case, first=None, backends=frozenset())
    records = [*records_of(experiment)]
    experiment = experiment.after(outcomes_of(records))
    return experiment, [record.run for record in with_intermediates(experiment, records)]


def with_intermediates(experiment: Experiment, records: list[RunRecord]) -> list[RunRecord]:
    if INTERPRETED in experiment.backends:
        from .kernel_values import with_kernel_values  # it imports Triton, as the run did

        records, is_shown = with_kernel_values(experiment, records)
        if is_shown:
            return records
    from ..probing.insides import with_insides

    return with_insides(experiment, records)


def _mismatched(of: MeasuredRun) -> list[str]:
    names = list[str]()
    for name, finding in of.comparison.findings.items():
        if finding.status == MISMATCH:
            names.append(name)
    return names


def _fails_alike(measured: MeasuredRun, failing: MeasuredRun) -> bool:
    here = _mismatched(measured)
    there = _mismatched(failing)
    for name in here:
        small, large = measured.trace.values.get(name), failing.trace.values.get(name)
        if small is not None and not small.any() and (large is None or large.any()):
            # A fault that takes all of a short case leaves no trace of what it is.
            return False
    return bool(there) and here[:1] == there[:1]


def size_in_words(case: Case) -> str:
    sizes = {"batch": None if case.cu_seqlens_q else case.batch, "heads": case.heads}
    sizes["kv_heads"] = case.kv_heads if case.kv_heads != case.heads else None
    return " ".join(flags(sizes | length_words(case)))
