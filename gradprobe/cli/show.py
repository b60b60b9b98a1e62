"""`gradprobe show FILE`: a saved report in any form."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..inputs.options import command_line
from ..model.documents import Reports, load_several
from ..model.failures import Failure, UsageFailure
from ..render.terminal import show as show_lines
from ..render.terminal import terminal, write_stdout
from .error_output import failures_told
from .forms import Forms, with_forms
from .shared_options import Traceback


@with_forms
def show(
    file: Annotated[str, typer.Argument(metavar="FILE", help="What --json wrote, of one check or of several")],
    forms: Forms = Forms(),  # noqa: B008 - it holds nothing
    show_traceback: Traceback = False,
) -> None:
    """Show a saved report in any form, without running anything: made on one machine, read on any.

    Every form is what the run itself would have written, but for times. The exit code is the run's.
    """
    with failures_told(Forms(), command_line("show", file, {}), show_traceback, runs=False):
        forms.refuse_one_file_twice()
        several = read(file)
        if not forms.on_stdout:
            _print(several)
        raise typer.Exit(forms.write(several, exit_code(several)))


def read(file: str) -> Reports:
    """The reports of a file.

    Raises:
        UsageFailure: it cannot be read, or holds none.
    """
    try:
        return load_several(Path(file).read_bytes())
    except OSError as error:
        raise UsageFailure(
            f"{file}: cannot be read, {error.strerror}", "gradprobe check --json FILE writes one"
        ) from error
    except UsageFailure as failure:
        raise UsageFailure(f"{file}: {failure}", failure.way_out) from failure


def exit_code(several: Reports) -> int:
    """That of the command that made them."""
    from ..commands.suite.checked import code_of, code_of_report

    codes = [code_of_report(report) for report in several.reports]
    # Nothing compared is no match.
    return code_of(codes) if several.counted else Failure.exit_code


def _print(several: Reports) -> None:
    from ..commands.strides.shown import survey_lines
    from ..commands.suite.table import render_several

    if several.planned is None or any(report.strides for report in several.reports):
        for report in several.reports:
            show_lines(survey_lines(report))
            if report.error is not None and not report.runs:
                write_stdout(f"ERROR  {report.error.message}\n")
    else:
        show_lines(list(render_several(several, terminal())))
