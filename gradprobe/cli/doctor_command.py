"""`gradprobe doctor`: is it the machine, or which file runs, or on which rung does a kernel fail first?"""

from __future__ import annotations

import contextlib
from typing import Annotated, Any

import typer

from ..model.failures import UsageFailure
from ..render.terminal import Progress, interrupted, print_failure, width
from . import shared_options as shared
from .error_output import failures_told
from .report_forms import show_document


@shared.with_case_options
def doctor(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="TARGET", help="As for check; without it, the machine is examined"
        ),
    ] = None,
    family: shared.Family = None,
    json_file: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="For bug reports; - for stdout")
    ] = None,
    fresh: shared.Fresh = False,
    timeout: shared.Timeout = None,
    show_traceback: shared.Traceback = False,
    *,
    options: dict[str, Any],
) -> None:
    """Climb a ladder from the simplest kernels up, on this machine or with TARGET, and say what really runs.

    Look at the first rung that is not green: what it needs more than the one below it is at fault.
    """
    request = shared.request_of(target, family, options)
    command = "gradprobe doctor"
    if target is not None:
        command = request.command("doctor", fresh=fresh or None)
    with failures_told(json_file, command, show_traceback, target, runs=False):
        from ..commands.doctor.climbing import examine
        from ..commands.doctor.doctor_screen import as_json, render_examination
        from ..processes.child import fresh_caches

        if target is None and (options or family):
            words = "doctor takes a case with a TARGET alone"
            raise UsageFailure(words, "name what is to be climbed with")
        if target is not None:
            from ..commands.doctor.ladder import refuse_set

            refuse_set(request)
            shared.refuse_wrong_words(request)
        with fresh_caches() if fresh else contextlib.nullcontext(), Progress() as tick:
            try:
                made = examine(request if target else None, command, timeout, tick)
            except KeyboardInterrupt:
                tick.over(lambda: print_failure(interrupted(0, 0, "rungs")))
                raise
        show_document(json_file, as_json(made), render_examination(made, width()))
        raise typer.Exit(made.exit_code)
