"""What a command says on stderr: its failures, with an error report where JSON was asked for; what is in force."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator

import typer

from ..failures import Failure, UsageFailure, as_failure
from ..screen import dump, say


@contextlib.contextmanager
def failures_told(json_file: str | None, again: str, show_traceback: bool) -> Iterator[None]:
    """Turns failures into messages on stderr, an error report where JSON was asked for, and the exit code."""
    try:
        yield
    except typer.Exit:
        raise
    except Exception as error:
        failure = told(error, show_traceback)
        if json_file is not None:
            _write_error_report(json_file, failure, again)
        raise typer.Exit(failure.exit_code) from None


def told(error: Exception, show_traceback: bool) -> Failure:
    """The failure that an error is, said on stderr."""
    failure = as_failure(error)
    if show_traceback:
        traceback.print_exception(error)
    say(failure)
    return failure


def tell_force(line: str | None) -> None:
    """Says which configuration is in force, where any is."""
    if line is not None:
        typer.echo(f"gradprobe: {line}", err=True)


def _write_error_report(json_file: str, failure: Failure, again: str) -> None:
    from ..report.as_json import failure_as_json

    try:
        dump(json_file, failure_as_json(failure, again))
    except UsageFailure as unwritable:
        if str(unwritable) != str(failure):
            say(unwritable)
