"""`gradprobe shrink`: the smallest case that fails in the same way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..commands.suite.checking import Setting
from ..inputs import history as last
from ..model.failures import UsageFailure
from ..model.writing import replace_file
from ..processes import tell
from ..render.files import document, keeps_changing
from ..render.terminal import dump, note, show, width
from . import shared_options as shared
from .diff_command import like_the_last
from .own_process import ProgressNote, apart
from .report_forms import failures_told

if TYPE_CHECKING:
    from ..commands.shrink.shrinking import ShrinkResult
    from ..commands.shrink.simpler_cases import Simplification
    from ..model.case import Case


@shared.with_case_options
def shrink(
    target: shared.Target = None,
    tries: Annotated[int, typer.Option(metavar="N", min=1, help="The most cases to try")] = 200,
    script: Annotated[
        str,
        typer.Option(
            "--script",
            metavar="FILE.py",
            help="File of a script that shows the fault without gradprobe",
        ),
    ] = str(last.FOLDER / "shrunk.py"),
    test: Annotated[
        str,
        typer.Option(
            "--test", metavar="FILE.py", help="File of a pytest test of the smallest case"
        ),
    ] = str(last.FOLDER / "test_shrunk.py"),
    isolate: shared.IsolateEach = None,
    timeout: shared.Timeout = None,
    fix_budget: shared.FixBudget = shared.FIX_BUDGET,
    family: shared.Family = None,
    reference: shared.Reference = None,
    json_file: shared.JsonFile = None,
    show_traceback: shared.Traceback = False,
    *,
    options: dict[str, Any],
) -> None:
    """Find the smallest case that fails in the same way, and write it as a command line, a script and a pytest test.

    It begins with the case that is given, else with that of the last check in this folder.
    """
    asked = shared.request_of(target, family, options, reference)
    with failures_told(json_file, asked.command("shrink"), show_traceback):
        request, repeated = like_the_last(asked, named=target is not None)
    with failures_told(json_file, request.command("shrink"), show_traceback):
        shared.refuse_wrong_words(request)
        settings = shared.settings_here(request.target)
        seconds = settings.timeout(timeout)
        shared.note_settings(settings, request.options, timeout)
        request = settings.over(request)
        if repeated:
            note(f"as in the last check here: {request.command()}")
        alone = bool(isolate) or seconds is not None
        how = Setting(show_traceback, isolate=alone, timeout=seconds, fix_budget=fix_budget)
        # Where each case has a process of its own, none is run in this one.
        apart_too = not (isolate is False or alone)
        words = (request, tries, how, {"script": script, "test": test}, json_file)
        raise typer.Exit(
            apart(
                _shrunken,
                *words,
                target=request.target,
                isolate=apart_too,
                show_traceback=show_traceback,
            )
        )


def _shrunken(
    request: last.CheckRequest,
    most: int,
    how: Setting,
    files: Mapping[str, str],
    json_file: str | None,
) -> int:
    """Searches, writes the files and shows what came of it; the exit code."""
    from ..commands.shrink.case_words import case_in_words
    from ..commands.shrink.shrinking import shrink as shrunken
    from ..commands.shrink.shrunken_screen import document_of, rendered

    def show_step(
        case: Case, step: Simplification | None, count: int, options: Mapping[str, Any]
    ) -> None:
        repro_command = replace(request, options=options).command()
        what = "it fails" if step is None else f"still so {step.change}"
        note(f"{count:>3} tried, {what}: {case_in_words(case)}")
        words, kept = f"{count} cases tried, of at most {most}", "the smallest case so far"
        tell(ProgressNote(words, count, most, "cases at most", f"{kept}: {repro_command}"))
        if json_file is not None and keeps_changing(json_file):
            dump(json_file, document(repro_command))

    result = shrunken(request, most=most, setting=how, told=show_step)
    written = _written(result, files)
    dump(json_file, document_of(result, written))
    if json_file != "-":
        show(list(rendered(result, written, width())))
    return result.exit_code


def _written(result: ShrinkResult, files: Mapping[str, str]) -> dict[str, str]:
    """Writes the script and the test of a shrunken case; those that were written, by what they are.

    Raises:
        UsageFailure: a file cannot be written.
    """
    from ..commands.shrink.program import pytest_source
    from ..render.console import first_line

    if result.last is None:
        return {}
    sources = {}
    if result.script:
        sources["script"] = result.script.at(Path(files["script"]))
    first = first_line(result.last)
    sources["test"] = pytest_source(result.request, first, Path(files["test"]))
    for what, source in sources.items():
        file = Path(files[what])
        try:
            if file.parent == last.FOLDER:
                last.make_folder()
            replace_file(file, source)
        except OSError as error:
            raise UsageFailure(f"--{what} {file}: cannot be written, {error.strerror}") from error
    return {what: files[what] for what in sources}
