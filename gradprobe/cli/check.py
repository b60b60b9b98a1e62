"""`gradprobe check`: the main job."""

from __future__ import annotations

from typing import Any

import typer

from .. import last
from ..answer import answer
from ..options import command_line
from ..screen import rendered, show
from .failing import failures_told
from .forms import Forms, GitHub, JUnitFile, SarifFile
from .words import FamilyWord, JsonFile, ReferenceWord, TargetWord, Traceback, chosen, with_case_options


@with_case_options
def check(
    target: TargetWord = None,
    family: FamilyWord = None,
    reference: ReferenceWord = None,
    json_file: JsonFile = None,
    junit_file: JUnitFile = None,
    sarif_file: SarifFile = None,
    github: GitHub = False,
    show_traceback: Traceback = False,
    *,
    options: dict[str, Any],
) -> None:
    """Run a kernel beside the reference, diff every intermediate, and point at the first mismatch."""
    asked = last.Asked(target or "lazy", family, reference, options)
    again = command_line("check", asked.target, options, chosen(asked))
    forms = Forms(json_file, junit_file, sarif_file, github)
    with failures_told(forms, again, show_traceback, asked.target):
        forms.refuse_one_file_twice()
        report = answer(asked, again)
        last.save(asked)
        if not forms.on_stdout:
            show(rendered(report))
        from ..report.as_json import as_json

        raise typer.Exit(forms.write([as_json(report)], 1 if report.failing else 0))
