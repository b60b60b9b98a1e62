"""`gradprobe check`: the main job."""

from __future__ import annotations

from typing import Any

import typer

from .. import last
from ..answer import answer
from ..options import command_line
from ..screen import rendered, show, write_json
from .alone import check_alone
from .failing import failures_told
from .words import (
    FamilyWord,
    Isolate,
    JsonFile,
    ReferenceWord,
    TargetWord,
    Timeout,
    Traceback,
    checked_timeout,
    chosen,
    with_case_options,
)


@with_case_options
def check(
    target: TargetWord = None,
    family: FamilyWord = None,
    reference: ReferenceWord = None,
    json_file: JsonFile = None,
    isolate: Isolate = False,
    timeout: Timeout = None,
    show_traceback: Traceback = False,
    *,
    options: dict[str, Any],
) -> None:
    """Run a kernel beside the reference, diff every intermediate, and point at the first mismatch."""
    asked = last.Asked(target or "lazy", family, reference, options)
    again = command_line("check", asked.target, options, chosen(asked))
    with failures_told(json_file, again, show_traceback):
        if isolate or checked_timeout(timeout) is not None:
            raise typer.Exit(check_alone(asked, json_file, timeout=timeout, show_traceback=show_traceback))
        report = answer(asked, again)
        last.save(asked)
        write_json(json_file, report)
        if json_file != "-":
            show(rendered(report))
        raise typer.Exit(1 if report.failing else 0)
