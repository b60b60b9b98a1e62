"""CheckRequest -> Probed: imports what the words need, resolves the case, and probes."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..inputs.history import CheckRequest
from ..model.allowance import NOTHING, Allowance
from ..model.writing import safe
from ..runtime.versions import untested
from .resolve import resolve_problem

if TYPE_CHECKING:
    from ..numerics.evidence import Probed
    from ..probing.experiment import Tick

# Elements of all score matrices up to which a check takes no time that anybody waits for.
_QUICK = 1 << 20


def run_check(
    request: CheckRequest,
    repro_command: str,
    *,
    target: Callable[..., Any] | None = None,
    reference: Callable[..., Any] | None = None,
    tick: Tick = lambda stage, fraction, layout="": None,
    told: Callable[[Probed], object] = lambda so_far: None,
    budget: Callable[[], Allowance] = lambda: NOTHING,
    beyond: bool = False,
) -> Probed:
    """The report that a target and its options ask for.

    Args:
        repro_command: the command line that repeats it.
        target: a function to check in place of the one that is asked for by a word.
        reference: likewise.
        tick: told how far it is.
        told: given the report of what is measured so far, again and again.
        budget: from `probe`.
        beyond: whether a target that matches is run on small second cases of what this one does not use.

    Raises:
        Failure: whatever keeps it from being made.
    """
    start = time.perf_counter()
    # What a target prints is no data of this command.
    with contextlib.redirect_stdout(sys.stderr):
        tick("importing torch and the target", 0.0)
        problem = resolve_problem(request, target=target, reference=reference)
        from .probe import probed
        from .second_cases import with_second_cases

        imported = time.perf_counter() - start
        if beyond and problem.case.scores > _QUICK:
            from .cost import cost_in_words

            if words := cost_in_words(problem):
                sys.stderr.write(safe(f"gradprobe: {words}\n"))
        report, problem = probed(problem, repro_command, tick, told, budget)
        if beyond:
            report, problem = with_second_cases(report, problem, tick, told, budget)
        if problem.saved is not None:
            from .fit import refuse_misreading

            wrong = report.failing[0].measured if report.failing else None
            refuse_misreading(wrong, problem.saved, problem.target)
    if words := untested():
        report = replace(report, notes=(words, *report.notes))
    seconds = {"import": imported, **report.seconds, "total": time.perf_counter() - start}
    return replace(report, seconds=seconds)
