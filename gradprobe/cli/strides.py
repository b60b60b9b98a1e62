"""`gradprobe strides`: the guard against stride regressions."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from .. import last
from ..failures import UsageFailure
from ..options import command_line
from ..progress import Progress
from ..screen import dump, show, utf8, width
from .failing import failures_told
from .words import FamilyWord, JsonFile, TargetWord, Traceback, chosen, with_case_options

# Small, with a partial tile along both axes: there are many runs.
SMALL = {"seqlen": 37, "head_dim": 16}


@with_case_options
def strides(
    target: TargetWord = None,
    fast: Annotated[bool, typer.Option("--fast", help="Fewer layouts, for every push")] = False,
    timeout: Annotated[float | None, typer.Option(metavar="SECONDS", help="For one layout (default: none)")] = None,
    family: FamilyWord = None,
    json_file: JsonFile = None,
    show_traceback: Traceback = False,
    *,
    options: dict[str, Any],
) -> None:
    """Run a kernel with every tensor in every layout, and say which it gets wrong.

    Each run is held against the same values laid contiguous, bit for bit; where it differs, against the reference.
    """
    asked = last.Asked(target or "lazy", family, None, _with_defaults(options))
    again = command_line("strides", asked.target, options, chosen(asked) | {"fast": fast or None, "timeout": timeout})
    with failures_told(json_file, again, show_traceback):
        _refuse(options)
        from ..report.survey import render_survey
        from ..report.survey_as_json import survey_as_json
        from ..strides.survey import Survey, survey

        def told(found: Survey) -> None:
            done, of = len(found.results), len(found.plan.trials)
            tick(f"{found.plan.document['target']['name']}, layout {done} of {of}", done / of)
            if json_file not in (None, "-"):
                dump(json_file, survey_as_json(found))

        with Progress() as tick:
            tick("importing torch and the target", 0.0)
            found = survey(asked, again, fast=fast, timeout=timeout, told=told, echo=_echo)
        if json_file is not None:
            dump(json_file, survey_as_json(found))
        if json_file != "-":
            show(render_survey(found, width(), utf8=utf8()))
        raise typer.Exit(found.exit_code)


def _with_defaults(options: dict[str, Any]) -> dict[str, Any]:
    """The options, with the small lengths where none are given."""
    lengths = {"seqlen", "seqlen_q", "seqlen_k", "seqlens", "cu_seqlens"}
    if lengths & options.keys():
        return {name: value for name, value in SMALL.items() if name not in lengths} | options
    return SMALL | options


def _refuse(options: dict[str, Any]) -> None:
    """What contradicts a survey of layouts."""
    for name in ("layout", "inputs"):
        if name in options:
            raise UsageFailure(
                f"--{name}: strides tries every layout, of drawn values", f"gradprobe check takes --{name}"
            )


def _echo(text: str) -> None:
    typer.echo(text, err=True, nl=False)
