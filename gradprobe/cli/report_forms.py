"""What a command writes: its report in each form that was asked for, its failures, and the exit code."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..model.documents import Reports
from ..model.failures import Failure, UsageFailure, as_failure
from ..model.report import Report, failed_report
from ..model.writing import inert, open_in_place, replace_file
from ..render.files import FORMS, STDERR, keeps_changing, maker_of
from ..render.terminal import (
    dump,
    print_failure,
    show,
    takes_stderr,
    terminal,
    write_stderr,
    write_stdout,
)

if TYPE_CHECKING:
    from rich.text import Text


def show_document(json_file: str | None, document: dict[str, Any], lines: list[Text]) -> None:
    """Writes a document where a file was asked for, and shows lines where stdout is not its own."""
    dump(json_file, document)
    if json_file != "-":
        show(lines)


@dataclass(frozen=True)
class Forms:
    files: Mapping[str, str] = field(default_factory=dict)
    """The name of a file, or - for stdout, by the option of its form."""
    details: bool = False
    """Whether stdout shows all of a report."""

    @property
    def json(self) -> str | None:
        return self.files.get("--json")

    def show(self, report: Report, rest: str = "") -> None:
        """Shows a report, unless stdout is a document's; `rest` is the command that shows all of it."""
        from ..render.screen import rendered

        if not self.on_stdout:
            on = replace(terminal(), details=self.details, rest=rest, is_said=takes_stderr())
            show(rendered(report, on))

    @property
    def on_stdout(self) -> bool:
        """Whether stdout is a document's, so that nothing else may stand there."""
        return "-" in self.files.values()

    def refuse_one_file_twice(self) -> None:
        """Raises UsageFailure where two forms go to one place."""
        seen: dict[str, str] = {}
        for flag, file in self.files.items():
            other = seen.setdefault(_place(file), flag)
            if other != flag:
                where = "stdout" if file == "-" else file
                words = f"{other} and {flag} both write to {where}"
                raise UsageFailure(words, "give each a file of its own")

    def write_so_far(self, several: Reports) -> int:
        """Writes what came into every file that may be written again, where none is right yet; 2 where it cannot."""
        again = {
            flag: file
            for flag, file in self.files.items()
            if file != STDERR and keeps_changing(file)
        }
        return Forms(again).write(several, None)

    def write(self, several: Reports, code: int | None, *, said: str = "") -> int:
        """Writes every form; the exit code, which is 2 in place of 0 where one cannot be written.

        Args:
            code: what the checks came to; None as long as more of them are to come.
            said: a message that is on stderr already.
        """
        failures = [failure for failure in self._attempts(several, code) if failure is not None]
        for failure in failures:
            if str(failure) != said:
                print_failure(failure)
        return code or (2 if failures else 0)

    def _attempts(self, several: Reports, code: int | None) -> Iterator[UsageFailure | None]:
        if not self.files:
            return
        from ..render.source_places import with_origin

        several, places = with_origin(several), dict[str, tuple[str, str]]()
        for flag, file in self.files.items():
            # Two in one place were refused: only the first says so there.
            places.setdefault(_place(file), (flag, file))
        # All are made before one is written: then they change at one moment.
        texts = [(flag, file, maker_of(flag)(several, code)) for flag, file in places.values()]
        for flag, file, text in texts:
            yield write_form(flag, file, text)
        if "--github" in self.files:
            yield _summarize(several)


def _place(file: str) -> str:
    return file if file == "-" else os.path.realpath(file)


def write_form(flag: str, file: str, text: str) -> UsageFailure | None:
    """Why the text could not be written, where it could not."""
    try:
        if file == "-":
            write_stdout(inert(text, FORMS[flag].escape))
        elif file == STDERR:
            print(text, end="", file=sys.stderr)
        else:
            replace_file(file, text)
    except OSError as error:
        return UsageFailure(f"{flag} {file}: cannot be written, {error.strerror}")
    return None


def _summarize(several: Reports) -> UsageFailure | None:
    """Adds a table to what a step on GitHub has written into its summary, as far as there is room."""
    from ..render.github import MOST_BYTES, markdown

    if not (summary := os.environ.get("GITHUB_STEP_SUMMARY")):
        return None
    file = Path(summary)
    try:
        there = file.stat().st_size if file.exists() else 0
        with open_in_place(file, "ab") as stream:
            stream.write(markdown(several, 0, MOST_BYTES - there).encode())
    except OSError as error:
        words = f"--github: the summary {summary} cannot be written"
        return UsageFailure(f"{words}, {error.strerror}")
    return None


def write_failure(forms: Forms, failure: Failure, line: str, target: str = "") -> int:
    """Writes a failure that is on stderr already in each form; `line` is the command line as typed. The exit code."""
    made = Reports(reports=(failed_report(failure, line, target),))
    return forms.write(made, failure.exit_code, said=str(failure))


def report_error(error: Exception, show_traceback: bool) -> Failure:
    failure = as_failure(error)
    if show_traceback:
        write_stderr("".join(traceback.format_exception(error)))
    print_failure(failure)
    return failure
