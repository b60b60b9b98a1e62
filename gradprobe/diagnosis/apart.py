"""P, dP, dS and delta of a failing run: seen in its kernels where these are interpreted; else recovered."""

from __future__ import annotations

from ..frontends import INTERPRETED
from ..probing.experiment import Experiment
from ..probing.runs import RunRecord


def with_intermediates(experiment: Experiment, records: list[RunRecord]) -> list[RunRecord]:
    """The records with what the target does not expose."""
    if INTERPRETED in experiment.backends:
        # It imports Triton, which a run in the interpreter has surely done already.
        from .kernel_values import with_kernel_values

        records, is_shown = with_kernel_values(experiment, records)
        if is_shown:
            return records
    from ..probing.insides import with_insides

    return with_insides(experiment, records)
