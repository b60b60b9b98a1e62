"""CheckRequest -> Probed: imports what the words need, resolves the case, and probes."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING, Any

from ..inputs.history import CheckRequest
from ..inputs.versions import untested
from ..model.allowance import Client
from ..model.layout_run import MATCH
from .resolve import resolve_problem

if TYPE_CHECKING:
    from ..numerics.evidence import ProbeResult


def run_check(
    request: CheckRequest,
    repro_command: str,
    *,
    target: Callable[..., Any] | None = None,
    reference: Callable[..., Any] | None = None,
    client: Client = Client(),  # noqa: B008 - it is frozen
    beyond: bool = False,
) -> ProbeResult:
    """The report that a target and its options ask for; Failure where it cannot be made.

    Args:
        target, reference: a function in place of a word.
        beyond: whether a target that matches is run on small second cases.
    """
    start = perf_counter()
    # What a target prints is no data of this command.
    with contextlib.redirect_stdout(sys.stderr):
        client.tick("importing torch and the target", 0.0)
        problem = resolve_problem(request, target, reference)
        from .probe import probed

        imported = perf_counter() - start
        report, problem = probed(problem, repro_command, client)
        if beyond and report.verdict == MATCH:
            from .second_cases import with_second_cases

            report, problem = with_second_cases(report, problem, client)
        wrong = report.failing[0].measured if report.failing else None
        if problem.saved is not None and wrong is not None:
            from ..numerics.conventions import refuse_misreading

            of = (wrong.x, wrong.trace, wrong.comparison)
            refuse_misreading(*of, problem.saved.values, problem.target.name)
    notes = (untested(), *report.notes) if untested() else report.notes
    seconds = {"import": imported, **report.seconds, "total": perf_counter() - start}
    return replace(report, notes=notes, seconds=seconds)
