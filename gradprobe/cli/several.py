"""Several checks on the command line: shown and written as they come, and one exit code for all."""

from __future__ import annotations

import time
from bisect import insort
from collections.abc import Callable, Sequence

import typer

from .. import last
from ..failures import Failure
from ..screen import dump, keeps_changing, look, put, say, show
from ..suite.checked import Checked, Planned, Untaken, code_of
from ..suite.checking import check_each
from ..suite.documents import together
from ..suite.table import LISTED, Table, in_full, not_taken, simplest, summary, words_of
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
    untaken: Sequence[Untaken] | None = None,
    closer: Callable[[Checked], Checked] = lambda failing: failing,
) -> int:
    """Makes every check, shows a table of them and the simplest failing one in full; the exit code of all.

    Args:
        untaken: what the target does not take by its signature, where that is no error; nor is then what it refuses.
        closer: makes the simplest failing check once more, as it is to be shown.

    Raises:
        UsageFailure: a file cannot be written, said before anything is checked.
    """
    start, shown = time.perf_counter(), json_file != "-"
    table, checks = Table(planned, look()), list[Checked]()
    setting = Setting(look(), show_traceback, workers)
    expected = len(planned)
    written(checks, expected, json_file, untaken, over=False)
    if shown:
        show(table.head())
    try:
        for checked in check_each(planned, setting, timeout=timeout):
            if untaken is not None and checked.is_refused:
                untaken, expected = [*untaken, Untaken(checked.title, words_of(checked.document))], expected - 1
                continue
            insort(checks, checked, key=lambda one: one.number)
            written(checks, expected, json_file, untaken, over=False)
            if shown:
                show(table.line_of(checked))
            _tell_how_far(len(checks), expected)
        failing = simplest(checks)
        if failing is not None:
            checks[checks.index(failing)] = failing = closer(failing)
    finally:
        written(checks, expected, json_file, untaken, over=True)
    _remember(checks)
    if not checks:
        say(Failure("nothing was compared: the target takes none of the cases"))
    if shown:
        show(not_taken(untaken or ()))
        put("".join(f"{line}\n" for line in ["", *in_full(failing), ""]) if failing else "")
        show([summary(checks, expected, time.perf_counter() - start)])
    return code_of([checked.code for checked in checks]) if checks else Failure.exit_code


def written(
    checks: Sequence[Checked],
    planned: int,
    json_file: str | None,
    untaken: Sequence[Untaken] | None = None,
    *,
    over: bool,
) -> None:
    """Writes all that came so far, in every form that was asked for. Called before the first check, and after each.

    Args:
        over: whether no more come. A stream is written only then.
    """
    documents = [checked.document for checked in checks]
    if json_file is not None and (over or keeps_changing(json_file)):
        dump(json_file, together(documents, planned, untaken))


def _tell_how_far(done: int, planned: int) -> None:
    if planned > LISTED and done % _BETWEEN == 0:
        typer.echo(f"gradprobe: {done} of {planned} checked", err=True)


def _remember(checks: Sequence[Checked]) -> None:
    """`diff` repeats the simplest failing check, else the first."""
    made = [checked for checked in checks if checked.verdict != "error"]
    if made:
        last.save((simplest(made) or made[0]).asked)
