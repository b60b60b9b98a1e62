"""`gradprobe targets`: what can be checked here."""

from __future__ import annotations

from typing import Annotated

import typer

from ..screen import dump, show, width
from .failing import failures_told
from .words import Traceback


def targets(
    json_file: Annotated[str | None, typer.Option("--json", metavar="FILE", help="Write as JSON; - for stdout")] = None,
    show_traceback: Traceback = False,
) -> None:
    """List what can be checked here, with what each takes and exposes, and why something cannot."""
    with failures_told(None, "gradprobe targets", show_traceback, runs=False):
        from ..report.targets import as_json, render
        from ..targets.catalogue import catalogue

        entries = catalogue()
        if json_file is not None:
            dump(json_file, as_json(entries))
        if json_file != "-":
            show(render(entries, width()))
