"""What a command says on stderr: its failures, in each form asked for too, and what configuration is in force."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator

import typer

from ..model.failures import Failure, as_failure
from ..render.terminal import print_failure
from ..runtime.versions import refuse_untested
from .forms import Forms


@contextlib.contextmanager
def failures_told(
    forms: Forms | str | None,
    again: str,
    show_traceback: bool,
    target: str | None = None,
    *,
    runs: bool = True,
) -> Iterator[None]:
    """Turns failures into messages on stderr, an error report in each form asked for, and the exit code.

    Args:
        forms: those of the command, or the file of JSON where it has no other.
        again: the command line that repeats it.
        target: what was to be checked.
        runs: whether a kernel is run, which needs versions that gradprobe is tested with.
    """
    try:
        if runs:
            refuse_untested()
        yield
    except typer.Exit:
        raise
    except Exception as error:
        failure = told(error, show_traceback)
        from ..model.documents import Reports
        from ..model.report import failed_report

        asked = forms if isinstance(forms, Forms) else Forms.json(forms)
        made = Reports(reports=(failed_report(failure, again, target),))
        raise typer.Exit(asked.write(made, failure.exit_code, said=str(failure))) from None


def told(error: Exception, show_traceback: bool) -> Failure:
    """The failure that an error is, said on stderr."""
    failure = as_failure(error)
    if show_traceback:
        traceback.print_exception(error)
    print_failure(failure)
    return failure


def print_settings(line: str | None) -> None:
    """Says which configuration is in force, where any is."""
    if line is not None:
        typer.echo(f"gradprobe: {line}", err=True)
