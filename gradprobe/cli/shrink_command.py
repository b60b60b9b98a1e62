"""`gradprobe shrink`: the smallest case that fails in the same way."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

from ..commands.suite.checking import Setting
from ..inputs.history import FOLDER, CheckRequest, make_folder
from ..model.failures import UsageFailure
from ..model.writing import replace_file
from ..processes import tell
from ..render.files import document, keeps_changing
from ..render.terminal import dump, note, show, width
from .command import Call, Command
from .option_rows import option
from .own_process import ProgressNote, apart

if TYPE_CHECKING:
    from ..commands.shrink.simpler_cases import WordedCase
    from ..model.report import Report

_TEST = FOLDER / "test_shrunk.py"
_OF_EACH = (
    "Run each case in a process of its own, so that a crash counts as a failure, or all in this one (default: all in "
    "another)"
)


@Command("target timeout fix_budget family reference")
def shrink(
    call: Call,
    tries: Annotated[int, option("--tries", "The most cases to try", "N", min=1)] = 200,
    isolate: Annotated[bool | None, option("--isolate/--no-isolate", _OF_EACH)] = None,
) -> int:
    """Find the smallest case that fails in the same way, and write it as a command line and a pytest test.

    It begins with the case that is given, else with that of the last check in this folder.
    """
    call, repeated = call.as_last()
    settings = call.settings()
    request = settings.over(call.request)
    if repeated:
        note(f"as in the last check here: {request.command()}")
    how = call.setting(settings)
    alone = bool(isolate) or how.timeout is not None
    # Where each case has a process of its own, none is run in this one.
    call = replace(call, isolate=not (isolate is False or alone))
    how = replace(how, isolate=alone)
    return apart(call, _shrunken, request, tries, how, call.forms.json)


def _shrunken(request: CheckRequest, most: int, how: Setting, json_file: str | None) -> int:
    """Searches, writes the test and shows what came of it; the exit code."""
    from ..commands.shrink.shrinking import document_of, rendered
    from ..commands.shrink.shrinking import shrink as shrunken

    def show_step(case: WordedCase, change: str, count: int) -> None:
        what = f"still so {change}" if change else "it fails"
        repro_command = replace(request, options=case.words).command()
        note(f"{count:>3} tried, {what}: {case.line}")
        words, kept = f"{count} cases tried, of at most {most}", "the smallest case so far"
        tell(ProgressNote(words, count, most, "cases at most", f"{kept}: {repro_command}"))
        if json_file is not None and keeps_changing(json_file):
            dump(json_file, document(repro_command))

    result = shrunken(request, most=most, setting=how, told=show_step)
    written = None if result.last is None else _written(result.request, result.last)
    dump(json_file, document_of(result, written))
    if json_file != "-":
        show(list(rendered(result, written, width())))
    return result.exit_code


def _written(request: CheckRequest, report: Report) -> str:
    """Writes the test of a shrunken case; its file. UsageFailure."""
    from ..commands.shrink.shrinking import pytest_source
    from ..render.console import first_line

    try:
        make_folder()
        replace_file(_TEST, pytest_source(request, first_line(report), _TEST))
    except OSError as error:
        raise UsageFailure(f"{_TEST} cannot be written, {error.strerror}") from error
    return str(_TEST)
