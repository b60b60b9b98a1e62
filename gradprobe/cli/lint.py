"""`gradprobe lint`: strides that are not their tensor's, from the source and one caught launch."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ..inputs.history import CheckRequest
from ..inputs.options import command_line
from ..model.failures import UsageFailure
from ..render.terminal import dump, show, width
from .apart import apart
from .error_output import failures_told
from .shared_options import FamilyWord, Isolate, JsonFile, Traceback, refuse_wrong_words, with_case_options


@with_case_options
def lint(
    target: Annotated[
        str | None,
        typer.Argument(metavar="TARGET", help="FILE.py (every function of it), or as for check (default: lazy)"),
    ] = None,
    family: FamilyWord = None,
    json_file: JsonFile = None,
    isolate: Isolate = True,
    show_traceback: Traceback = False,
    *,
    options: dict[str, Any],
) -> None:
    """Read a Triton kernel's pointers, and name each that advances by another tensor's stride, without a number run.

    A launch is caught in a layout in which every stride is a number of its own, and is not executed. Kernels of the
    file that are never launched are read by what their parameters are called.
    """
    word = "lazy" if target is None else target
    with failures_told(json_file, command_line("lint", word, options, {"family": family}), show_traceback, word):
        if "configs" in options:
            raise UsageFailure("--configs: lint runs no configuration", "gradprobe check takes --configs")
        refuse_wrong_words(CheckRequest(word, family, None, options), takes_file=True)
        request = (word, family, options, json_file)
        raise typer.Exit(apart(_linted, *request, target=word, isolate=isolate, show_traceback=show_traceback))


def _linted(word: str, family: str | None, options: dict[str, Any], json_file: str | None) -> int:
    """Reads the kernels and shows what they are accused of; the exit code."""
    from ..commands.lint import inquire

    inquiry = inquire(word, family, options)
    from ..commands.lint import lint_as_json, render_lint

    if json_file is not None:
        dump(json_file, lint_as_json(inquiry))
    if json_file != "-":
        show(render_lint(inquiry, width()))
    return 1 if inquiry.survey.findings else 0
