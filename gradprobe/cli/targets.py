"""`gradprobe targets`: what can be checked here."""

from __future__ import annotations

from typing import Annotated

import typer

from ..render.terminal import dump, show, width
from .error_output import failures_told
from .shared_options import Traceback


def targets(
    json_file: Annotated[str | None, typer.Option("--json", metavar="FILE", help="Write as JSON; - for stdout")] = None,
    show_traceback: Traceback = False,
) -> None:
    """List what can be checked here, with what each takes and exposes, and why something cannot."""
    with failures_told(None, "gradprobe targets", show_traceback, runs=False):
        from ..commands.targets import as_json, catalogue, render

        entries = catalogue()
        dump(json_file, as_json(entries))
        if json_file != "-":
            show(render(entries, width()))
