"""`gradprobe lint`: strides that are called another tensor's, read off the source."""

from __future__ import annotations

from typing import Annotated

import typer

from ..render.terminal import width
from . import shared_options as shared
from .error_output import failures_told
from .own_process import apart
from .report_forms import Details, show_document


def lint(
    target: Annotated[
        str | None,
        typer.Argument(metavar="TARGET", help="FILE.py, or as for check (default: lazy)"),
    ] = None,
    family: shared.Family = None,
    json_file: shared.JsonFile = None,
    details: Details = False,
    isolate: shared.Isolate = True,
    show_traceback: shared.Traceback = False,
) -> None:
    """Read a Triton kernel's pointers, and name each that advances by another tensor's stride, without a number run.

    Which tensor a pointer is, and whose a stride is, the names of the kernel's parameters say.
    """
    request = shared.request_of(target, family, {}, takes_file=True)
    word = request.target
    with failures_told(json_file, request.command("lint"), show_traceback, word):
        shared.refuse_wrong_words(request, takes_file=True)
        how = {"isolate": isolate, "show_traceback": show_traceback}
        raise typer.Exit(apart(_linted, word, family, json_file, details, target=word, **how))


def _linted(word: str, family: str | None, json_file: str | None, details: bool) -> int:
    from ..commands.kernel_reading import inquire, lint_as_json, render_lint

    inquiry = inquire(word, family)
    lines = render_lint(inquiry, width(), details=details)
    show_document(json_file, lint_as_json(inquiry), lines)
    return 1 if inquiry.findings else 0
