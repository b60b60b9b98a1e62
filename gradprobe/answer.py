"""Asked -> Report: imports what the words need, resolves the case, and probes."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .last import Asked
from .problem import problem_of

if TYPE_CHECKING:
    from .verdict import Report


def answer(
    asked: Asked,
    again: str,
    *,
    target: Callable[..., Any] | None = None,
    reference: Callable[..., Any] | None = None,
) -> Report:
    """The report that a target and its options ask for.

    Args:
        again: the command line that repeats it.
        target: a function to check in place of the one that is asked for by a word.
        reference: likewise.

    Raises:
        Failure: whatever keeps it from being made.
    """
    from .progress import Progress

    start = time.perf_counter()
    # What a target prints is no data of this command.
    with contextlib.redirect_stdout(sys.stderr), Progress() as tick:
        tick("importing torch and the target", 0.0)
        problem = problem_of(asked, target=target, reference=reference)
        from .judging.misreading import refuse_misreading
        from .probe import probe

        imported = time.perf_counter() - start
        case, found, beside, saved = problem.case, problem.target, problem.reference, problem.saved
        report = probe(case, found, reference=beside, saved=saved, reproduce=again, tick=tick)
        if saved is not None:
            refuse_misreading(report, saved, found)
    seconds = {"import": imported, **report.seconds, "total": time.perf_counter() - start}
    return replace(report, seconds=seconds)
