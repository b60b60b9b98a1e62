"""`gradprobe check`: the main job."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .. import last
from ..answer import answer
from ..configuration.force import configured, in_force
from ..failures import TargetFailure, UsageFailure
from ..options import command_line
from ..sanitizer import sanitizer_for, strays_under, with_strays, with_words
from ..screen import rendered, show
from ..spans import plural
from .alone import check_alone
from .battery import check_battery
from .failing import failures_told, tell_force
from .forms import Forms, GitHub, JUnitFile, SarifFile
from .several import check_several
from .words import (
    FamilyWord,
    Isolate,
    JsonFile,
    ReferenceWord,
    TargetWord,
    Timeout,
    Traceback,
    chosen,
    with_case_options,
)

if TYPE_CHECKING:
    from ..verdict import Report


@with_case_options
def check(
    target: TargetWord = None,
    family: FamilyWord = None,
    reference: ReferenceWord = None,
    json_file: JsonFile = None,
    junit_file: JUnitFile = None,
    sarif_file: SarifFile = None,
    github: GitHub = False,
    isolate: Isolate = False,
    timeout: Timeout = None,
    battery: Annotated[
        bool,
        typer.Option("--battery", help="The inputs that expose what others hide, as far as TARGET takes them"),
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
    asked = last.Asked(target or "lazy", family, reference, options)
    again = command_line("check", asked.target, options, chosen(asked) | ({"battery": True} if battery else {}))
    forms = Forms(json_file, junit_file, sarif_file, github)
    with failures_told(forms, again, show_traceback, asked.target):
        forms.refuse_one_file_twice()
        force = in_force(Path.cwd())
        seconds = force.timeout(timeout)
        plan = configured(force) if target is None and not (family or reference or options or battery) else []
        more = [plural(len(plan), "check")] if plan else []
        tell_force(force.line(options, timeout, more))
        program = sanitizer_for(sanitize) if sanitize is not None else None
        _refuse_beside_sanitize(sanitize, several=bool(plan) or battery, alone=isolate or seconds is not None)
        if plan:
            raise typer.Exit(check_several(plan, forms, timeout=seconds, show_traceback=show_traceback))
        if battery:
            code = check_battery(asked, force, forms, timeout=seconds, show_traceback=show_traceback)
            raise typer.Exit(code)
        asked = force.over(asked)
        if isolate or seconds is not None:
            raise typer.Exit(check_alone(asked, forms, timeout=seconds, show_traceback=show_traceback))
        line = command_line("check", asked.target, asked.options, chosen(asked))
        report = _sanitized(asked, line, program, sanitize) if program and sanitize else answer(asked, line)
        last.save(asked)
        if not forms.on_stdout:
            show(rendered(report))
        from ..report.as_json import as_json

        raise typer.Exit(forms.write([as_json(report)], 1 if report.failing else 0))


def _refuse_beside_sanitize(sanitize: str | None, *, several: bool, alone: bool) -> None:
    if sanitize is not None and (several or alone):
        other = "several checks" if several else "--isolate or --timeout"
        raise UsageFailure(f"--sanitize takes one check, in this process, not {other}", "run them one at a time")


def _sanitized(asked: last.Asked, line: str, program: str, tool: str) -> Report:
    """The report of a check, with what a tool of compute-sanitizer found in it; also where the check came to no end."""
    words = shlex.split(line)[1:]
    try:
        report = answer(asked, line)
    except TargetFailure as failure:
        raise with_words(failure, tool, strays_under(program, tool, words)) from failure
    kernels = [kernel.name for kernel in report.provenance.kernels]
    return with_strays(report, tool, strays_under(program, tool, words, kernels))
