"""`gradprobe strides`: the guard against stride regressions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from .. import last
from ..failures import UsageFailure
from ..options import command_line
from ..progress import Progress
from ..screen import show, utf8, width
from .failing import failures_told
from .forms import Forms, GitHub, JUnitFile, SarifFile
from .words import FamilyWord, JsonFile, TargetWord, Traceback, chosen, with_case_options

if TYPE_CHECKING:
    from ..strides.survey import Survey

# Small, with a partial tile along both axes: there are many runs.
SMALL = {"seqlen": 37, "head_dim": 16}


@with_case_options
def strides(
    target: TargetWord = None,
    fast: Annotated[bool, typer.Option("--fast", help="Fewer layouts, for every push")] = False,
    timeout: Annotated[float | None, typer.Option(metavar="SECONDS", help="For one layout (default: none)")] = None,
    family: FamilyWord = None,
    json_file: JsonFile = None,
    junit_file: JUnitFile = None,
    sarif_file: SarifFile = None,
    github: GitHub = False,
    show_traceback: Traceback = False,
    *,
    options: dict[str, Any],
) -> None:
    """Run a kernel with every tensor in every layout, and say which it gets wrong.

    Each run is held against the same values laid contiguous, bit for bit; where it differs, against the reference.
    """
    asked = last.Asked(target or "lazy", family, None, _with_defaults(options))
    again = command_line("strides", asked.target, options, chosen(asked) | {"fast": fast or None, "timeout": timeout})
    forms = Forms(json_file, junit_file, sarif_file, github)
    with failures_told(forms, again, show_traceback, asked.target):
        forms.refuse_one_file_twice()
        _refuse(options)
        found = _surveyed(asked, again, forms, fast=fast, timeout=timeout)
        if not forms.on_stdout:
            from ..report.survey import render_survey

            show(render_survey(found, width(), utf8=utf8()))
        from ..report.survey_as_json import survey_as_json

        raise typer.Exit(forms.write([survey_as_json(found)], found.exit_code))


def _surveyed(asked: last.Asked, again: str, forms: Forms, *, fast: bool, timeout: float | None) -> Survey:
    """The survey; what is known so far is in the file for JSON after each layout."""
    from ..report.survey_as_json import survey_as_json
    from ..strides.survey import survey

    def told(found: Survey) -> None:
        done, of = len(found.results), len(found.plan.trials)
        tick(f"{asked.target}, layout {done} of {of}", done / of)
        forms.rewritable.write([survey_as_json(found)], 0)

    with Progress() as tick:
        tick("importing torch and the target", 0.0)
        return survey(asked, again, fast=fast, timeout=timeout, told=told, echo=_echo)


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
