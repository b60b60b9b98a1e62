"""Several checks on the command line: shown and written as they come, and one exit code for all."""

from __future__ import annotations

import time
from bisect import insort
from collections.abc import Sequence

import typer

from .. import last
from ..screen import look, put, show
from ..suite.checked import Checked, Planned, code_of
from ..suite.checking import check_each
from ..suite.table import LISTED, Table, in_full, simplest, summary
from ..suite.worker import Setting
from .forms import Forms

# Of checks whose matches are not listed: how many lie between two words on stderr of how far it is.
_BETWEEN = 20


def check_several(
    planned: Sequence[Planned],
    forms: Forms,
    *,
    timeout: float | None,
    workers: int = 1,
    show_traceback: bool = False,
) -> int:
    """Makes every check, shows a table of them and the simplest failing one in full; the exit code of all.

    Every file that was asked for is written before the first check, which is not made where it cannot be, and after
    each.
    """
    start, shown = time.perf_counter(), not forms.on_stdout
    table, checks = Table(planned, look()), list[Checked]()
    setting = Setting(look(), show_traceback, workers)
    if code := _write(forms.rewritable, checks, len(planned)):
        return code
    if shown:
        show(table.head())
    try:
        for checked in check_each(planned, setting, timeout=timeout):
            insort(checks, checked, key=lambda one: one.number)
            _write(forms.rewritable, checks, len(planned))
            if shown:
                show(table.line_of(checked))
            _tell_how_far(len(checks), len(planned))
    finally:
        code = _write(forms, checks, len(planned))
    _remember(checks)
    if shown:
        failing = simplest(checks)
        put("".join(f"{line}\n" for line in ["", *in_full(failing), ""]) if failing else "")
        show([summary(checks, len(planned), time.perf_counter() - start)])
    return code


def _write(forms: Forms, checks: Sequence[Checked], planned: int) -> int:
    """Writes all that came so far; the exit code that it comes to."""
    documents = [checked.document for checked in checks]
    return forms.write(documents, code_of([checked.code for checked in checks]), planned=planned)


def _tell_how_far(done: int, planned: int) -> None:
    if planned > LISTED and done % _BETWEEN == 0:
        typer.echo(f"gradprobe: {done} of {planned} checked", err=True)


def _remember(checks: Sequence[Checked]) -> None:
    """`diff` repeats the simplest failing check, else the first."""
    made = [checked for checked in checks if checked.verdict != "error"]
    if made:
        last.save((simplest(made) or made[0]).asked)
