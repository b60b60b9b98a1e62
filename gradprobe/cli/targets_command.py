"""`gradprobe targets`: what can be checked here, or in a file."""

from __future__ import annotations

from typing import Annotated

import typer

from ..model.failures import UsageFailure, did_you_mean
from ..render.terminal import dump, show, width
from .error_output import failures_told
from .own_process import apart
from .shared_options import Isolate, Traceback


def targets(
    file: Annotated[
        str | None,
        typer.Argument(metavar="FILE.py", help="A file, whose functions are listed (default: the built-in)"),
    ] = None,
    json_file: Annotated[str | None, typer.Option("--json", metavar="FILE", help="Write as JSON; - for stdout")] = None,
    isolate: Isolate = True,
    show_traceback: Traceback = False,
) -> None:
    """List what can be checked here, with what each takes and exposes, and why something cannot.

    Of FILE.py, which is imported in a process of its own, each function is listed with the words to type.
    """
    with failures_told(None, "gradprobe targets", show_traceback, runs=False):
        from ..commands.target_list import as_json, catalogue, render

        if file is not None:
            _refuse_no_file(file)
            code = apart(_list, file, json_file, target=file, isolate=isolate, show_traceback=show_traceback)
            raise typer.Exit(code)
        entries = catalogue()
        dump(json_file, as_json(entries))
        if json_file != "-":
            show(render(entries, width()))


def _refuse_no_file(word: str) -> None:
    from pathlib import Path

    from ..targets.find import existing_file

    if not word.endswith(".py"):
        files = (str(one) for one in Path(word).parent.glob("*.py"))
        way_out = did_you_mean(word, files, "") or "without it, what is built in is listed"
        raise UsageFailure(f"targets {word}: expected FILE.py", way_out)
    existing_file(Path(word), word)


def _list(file: str, json_file: str | None) -> int:
    """Lists the functions of a file; the exit code."""
    from ..commands.target_list import file_as_json, found_in, render_file

    found = found_in(file)
    dump(json_file, file_as_json(found))
    if json_file != "-":
        show(render_file(found, width()))
    return 0
