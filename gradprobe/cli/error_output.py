"""What a command says on stderr: its failures, in each form that is asked for too, and the settings in force."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator

import typer

from ..inputs.versions import refuse_untested
from ..model.failures import Failure, as_failure
from ..render.terminal import note, print_failure, write_stderr
from .report_forms import Forms
from .shared_options import UNTESTED


@contextlib.contextmanager
def failures_told(
    forms: Forms | str | None,
    repro_command: str,
    show_traceback: bool,
    target: str | None = None,
    *,
    runs: bool = True,
) -> Iterator[None]:
    """Turns failures into messages on stderr, an error report in each form asked for, and the exit code.

    Args:
        forms: those of the command, or the file of JSON where it has no other.
        repro_command: the command line that repeats it.
        target: what was to be checked.
        runs: whether a kernel is run, which needs versions that gradprobe is tested with.
    """
    try:
        if runs and not UNTESTED.get():
            refuse_untested()
        yield
    except typer.Exit:
        raise
    except Exception as error:
        failure = report_error(error, show_traceback)
        asked = forms if isinstance(forms, Forms) else Forms.json(forms)
        raise typer.Exit(write_failure(asked, failure, repro_command, target)) from None


def write_failure(
    forms: Forms, failure: Failure, repro_command: str, target: str | None = None
) -> int:
    """Writes a failure that is on stderr already in each form asked for; the exit code."""
    from ..model.documents import Reports
    from ..model.report import failed_report

    made = Reports(reports=(failed_report(failure, repro_command, target),))
    return forms.write(made, failure.exit_code, said=str(failure))


def report_error(error: Exception, show_traceback: bool) -> Failure:
    """The failure that an error is, said on stderr."""
    failure = as_failure(error)
    if show_traceback:
        write_stderr("".join(traceback.format_exception(error)))
    print_failure(failure)
    return failure


def print_settings(line: str | None) -> None:
    """Says which configuration is in force, where any is."""
    if line is not None:
        note(line)
