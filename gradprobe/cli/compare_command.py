"""`gradprobe compare OLD.json NEW.json`: what changed."""

from __future__ import annotations

from typing import Annotated

import typer

from ..commands.saved_reports import damage_told, read
from ..inputs.options import command_line
from ..model.documents import Reports
from ..model.failures import UsageFailure
from ..model.writing import IN_MARKUP, inert, replace_file
from ..render.terminal import dump, show, width, write_stdout
from .error_output import failures_told
from .shared_options import JsonFile, Traceback


def compare(
    old: Annotated[str, typer.Argument(metavar="OLD.json", help="A report of before, as --json wrote it")],
    new: Annotated[str, typer.Argument(metavar="NEW.json", help="One of now")],
    json_file: JsonFile = None,
    html_file: Annotated[
        str | None, typer.Option("--html", metavar="FILE", help="Write a page, old beside new; - for stdout")
    ] = None,
    show_traceback: Traceback = False,
) -> None:
    """Say what changed from one saved report to another, and fail where something got worse.

    Worse is a verdict, a head that became wrong, a cause that came, or an error beyond its budget that grew twofold.
    The exit code is 0 where nothing is worse and 1 where something is.
    """
    with failures_told(json_file, command_line("compare", f"{old} {new}", {}), show_traceback, runs=False):
        from ..render.comparison import WORSE, changes_of, comparison_as_json, render_comparison, verdict_of

        before, after = read(old), read(new)
        with damage_told(f"{old} or {new}"):
            changes = changes_of(before, after)
            dump(json_file, comparison_as_json(changes))
            if html_file is not None:
                _write(html_file, before, after)
            if "-" not in (json_file, html_file):
                show(list(render_comparison(changes, width())))
        raise typer.Exit(int(verdict_of(changes) == WORSE))


def _write(file: str, before: Reports, after: Reports) -> None:
    from ..render.page.page import page_of_comparison

    page = page_of_comparison(before, after)
    try:
        write_stdout(inert(page, IN_MARKUP)) if file == "-" else replace_file(file, page)
    except OSError as error:
        raise UsageFailure(f"--html {file}: cannot be written, {error.strerror}") from error
