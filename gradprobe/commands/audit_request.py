"""`gradprobe audit` without typer: the words of a command line -> the report of an audit."""

from __future__ import annotations

import contextlib
import sys
import time
from typing import TYPE_CHECKING

from ..inputs.history import CheckRequest
from ..inputs.options import parse
from ..model.case import flag_of
from ..model.failures import UsageFailure
from ..model.layout_run import MATCH, MISMATCH, add_counts
from ..model.report import AuditSummary, CheckedTarget, Report

if TYPE_CHECKING:
    from ..pipeline.audit import Audit

OPTIONS = frozenset(
    ("batch", "heads", "seqlen", "head_dim", "causal", "scale", "softcap", "shapes", "tau", "bias", "bias_window")
)  # fmt: skip
"""The case options that an audit takes: it draws small cases of its own."""


def audited(request: CheckRequest) -> Report:
    """The report of an audit. UsageFailure of what cannot be asked for, TargetFailure of what cannot be run."""
    start = time.perf_counter()
    for name in request.options.keys() - OPTIONS:
        words = f"{flag_of(name)}: an audit draws small cases of its own"
        raise UsageFailure(words, f"it takes {', '.join(map(flag_of, sorted(OPTIONS)))}")
    given = parse(request.options)
    with contextlib.redirect_stdout(sys.stderr):
        from ..runtime.backend import prepare_backend

        # What its file imports may need Triton; the reference itself runs on the CPU.
        prepare_backend("auto")
        from ..pipeline.audit import audit

        made = audit(request.target, request.family, given)
    return _report(made, request, time.perf_counter() - start)


def _report(made: Audit, request: CheckRequest, seconds: float) -> Report:
    from ..frontends import TORCH
    from ..inputs.versions import installed_versions
    from ..pipeline.reported import run_of

    case, source = made.attempt.case, made.target.source
    runs = tuple(run_of(case, run) for run in made.runs)
    mismatches = [run.first_mismatch for run in runs if run.first_mismatch is not None]
    versions = {name: str(version) for name, version in installed_versions().items()}
    return Report(
        verdict=MATCH if made.attempt.is_right else MISMATCH,
        target=CheckedTarget(
            name=made.target.name,
            family=case.family,
            backend=TORCH,
            function=source.name,
            file=source.file,
            line=source.line,
            sha256=source.sha256,
            shadows=source.shadows,
        ),
        environment=versions | {"device": "cpu"},
        case=case,
        runs=runs,
        first_mismatch=mismatches[0] if mismatches else None,
        diagnoses=made.diagnoses,
        known=made.known,
        compared=add_counts(run.compared for run in runs),
        reproduce=request.command("audit"),
        seconds={"total": round(seconds, 4)},
        audit=AuditSummary(wrong=made.attempt.wrong, taken=made.taken),
    )
