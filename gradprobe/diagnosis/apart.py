"""P, dP, dS and delta of a failing run: seen in its kernels where these are interpreted, and judged; else recovered."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from ..frontends.interface import INTERPRETED
from ..numerics.evidence import LayoutRun
from ..probing.experiment import MOST_INTERPRETED, Experiment
from ..probing.runs import RunRecord


def with_intermediates(experiment: Experiment, records: list[RunRecord]) -> list[RunRecord]:
    """The records with what the target does not expose: seen in the first that fails, else recovered.

    A target in Triton's interpreter is run once more in that layout, and followed. Where that shows P or dS of every
    gradient that is wrong, nothing is recovered; where it does not, what was followed stays for the diagnosis.
    """
    for at, record in enumerate(records):
        if (run := record.run) is not None and _is_watchable(experiment, run):
            experiment.tick(f"following {run.layout}", 0.0, f"{run.layout}, followed")
            # They import Triton, which only a run in the interpreter has surely done already.
            from .dataflow import seen_in_dataflow
            from .kernel_values import shown_in

            with experiment.stopwatch.timed("compare"):
                read = partial(shown_in, experiment.case, run.measured)
                run = replace(run, watched=seen_in_dataflow(experiment, run, read))
            records = [*records[:at], replace(record, run=run), *records[at + 1 :]]
            if run.watched and run.watched.shown:
                return records
            break
    from ..probing.insides import with_insides

    return with_insides(experiment, records)


def _is_watchable(experiment: Experiment, run: LayoutRun) -> bool:
    """Whether a run is wrong, hides P or dS, and can be followed."""
    case, measured = experiment.case, run.measured
    return (
        INTERPRETED in experiment.backends
        and case.recover and experiment.reference is None and case.scores <= MOST_INTERPRETED
        and not case.cu_seqlens_q and not case.dropout
        and measured is not None and not measured.comparison.matches and not measured.coarser
        and measured.is_recoverable
    )  # fmt: skip
