"""Several checks on the command line: shown and written as they come, and one exit code for all."""

from __future__ import annotations

import time
from bisect import insort
from collections.abc import Sequence

import typer

from .. import last
from ..screen import dump, keeps_changing, look, put, show
from ..suite.checked import Checked, Planned, code_of
from ..suite.checking import check_each
from ..suite.documents import together
from ..suite.table import LISTED, Table, in_full, simplest, summary
from ..suite.worker import Setting

# Of checks whose matches are not listed: how many lie between two words on stderr of how far it is.
_BETWEEN = 20


def check_several(
    planned: Sequence[Planned],
    json_file: str | None,
    *,
    timeout: float | None,
    workers: int = 1,
    show_traceback: bool = False,
) -> int:
    """Makes every check, shows a table of them and the simplest failing one in full; the exit code of all.

    Raises:
        UsageFailure: a file cannot be written, said before anything is checked.
    """
    start, shown = time.perf_counter(), json_file != "-"
    table, checks = Table(planned, look()), list[Checked]()
    setting = Setting(look(), show_traceback, workers)
    written(checks, len(planned), json_file, over=False)
    if shown:
        show(table.head())
    try:
        for checked in check_each(planned, setting, timeout=timeout):
            insort(checks, checked, key=lambda one: one.number)
            written(checks, len(planned), json_file, over=False)
            if shown:
                show(table.line_of(checked))
            _tell_how_far(len(checks), len(planned))
    finally:
        written(checks, len(planned), json_file, over=True)
    _remember(checks)
    if shown:
        failing = simplest(checks)
        put("".join(f"{line}\n" for line in ["", *in_full(failing), ""]) if failing else "")
        show([summary(checks, len(planned), time.perf_counter() - start)])
    return code_of([checked.code for checked in checks])


def written(checks: Sequence[Checked], planned: int, json_file: str | None, *, over: bool) -> None:
    """Writes all that came so far, in every form that was asked for. Called before the first check, and after each.

    Args:
        over: whether no more come. A stream is written only then.
    """
    documents = [checked.document for checked in checks]
    if json_file is not None and (over or keeps_changing(json_file)):
        dump(json_file, together(documents, planned))


def _tell_how_far(done: int, planned: int) -> None:
    if planned > LISTED and done % _BETWEEN == 0:
        typer.echo(f"gradprobe: {done} of {planned} checked", err=True)


def _remember(checks: Sequence[Checked]) -> None:
    """`diff` repeats the simplest failing check, else the first."""
    made = [checked for checked in checks if checked.verdict != "error"]
    if made:
        last.save((simplest(made) or made[0]).asked)
