"""`gradprobe check`: the main job."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ..commands.configuration.effective import configured, effective_settings
from ..commands.suite.checked import Planned
from ..commands.suite.worker import Setting
from ..inputs import history as last
from ..inputs.options import command_line
from ..model.failures import UsageFailure
from ..model.spans import plural
from ..pipeline.sanitizer import sanitizer_for
from .battery import check_battery
from .check_isolated import check_one
from .check_many import check_several
from .error_output import failures_told, print_settings
from .forms import Forms, with_forms
from .shared_options import (
    FamilyWord,
    Isolate,
    ReferenceWord,
    TargetWord,
    Timeout,
    Traceback,
    chosen,
    refuse_wrong_words,
    with_case_options,
)


@with_case_options
@with_forms
def check(
    target: TargetWord = None,
    family: FamilyWord = None,
    reference: ReferenceWord = None,
    forms: Forms = Forms(),  # noqa: B008 - it holds nothing
    isolate: Isolate = True,
    timeout: Timeout = None,
    battery: Annotated[
        bool,
        typer.Option("--battery", help="Check inputs that expose what others hide, as far as TARGET takes them"),
    ] = False,
    sanitize: Annotated[
        str | None,
        typer.Option(
            "--sanitize",
            metavar="TOOL",
            help="On a GPU: memcheck, racecheck, initcheck, synccheck of compute-sanitizer too",
        ),
    ] = None,
    show_traceback: Traceback = False,
    *,
    options: dict[str, Any],
) -> None:
    """Run a kernel beside the reference, diff every intermediate, and point at the first mismatch.

    Without any target or case option, what pyproject.toml configures under tool.gradprobe is checked.
    """
    request = last.CheckRequest("lazy" if target is None else target, family, reference, options)
    again = command_line("check", request.target, options, chosen(request) | ({"battery": True} if battery else {}))
    with failures_told(forms, again, show_traceback, request.target):
        forms.refuse_one_file_twice()
        refuse_wrong_words(request)
        effective = effective_settings(Path.cwd())
        seconds = effective.timeout(timeout)
        plan = configured(effective) if target is None and not (family or reference or options or battery) else []
        more = [plural(len(plan), "check")] if plan else []
        print_settings(effective.line(options, timeout, more))
        program = sanitizer_for(sanitize) if sanitize is not None else None
        seconds = _refuse(sanitize, timeout, seconds, several=bool(plan) or battery, isolate=isolate)
        how = Setting(show_traceback, isolate=isolate, timeout=seconds)
        if plan:
            raise typer.Exit(check_several(plan, forms, how))
        if battery:
            raise typer.Exit(check_battery(request, effective, forms, how))
        planned = Planned("", effective.over(request), sanitizer=(program, sanitize) if program and sanitize else None)
        raise typer.Exit(check_one(planned, forms, how))


def _refuse(
    sanitize: str | None, timeout: float | None, seconds: float | None, *, several: bool, isolate: bool
) -> float | None:
    """The seconds for one check, unless options contradict one another."""
    if sanitize is not None and several:
        raise UsageFailure("--sanitize takes one check, not several", "run them one at a time")
    if timeout is not None and not isolate:
        raise UsageFailure("--timeout stops a process, and --no-isolate is in this one", "drop one of them")
    return seconds if isolate else None
