"""What a command writes: its report in each form, and its failures."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..model.documents import Reports
from ..model.failures import Failure, UsageFailure
from ..model.report import Report, failed_report
from ..model.writing import inert, open_in_place, replace_file
from ..render.files import FORMS, STDERR, keeps_changing, maker_of
from ..render.terminal import dump, print_failure, show, takes_stderr, terminal, write_stdout

if TYPE_CHECKING:
    from rich.text import Text


def show_document(json_file: str | None, document: dict[str, Any], lines: list[Text]) -> None:
    dump(json_file, document)
    if json_file != "-":
        show(lines)


@dataclass(frozen=True)
class Forms:
    files: Mapping[str, str] = field(default_factory=dict)
    """By the option of its form; - for stdout."""
    details: bool = False

    @property
    def json(self) -> str | None:
        return self.files.get("--json")

    def show(self, report: Report, rest: str = "") -> None:
        from ..render.screen import rendered

        if not self.on_stdout:
            on = replace(terminal(), details=self.details, rest=rest, is_said=takes_stderr())
            show(rendered(report, on))

    @property
    def on_stdout(self) -> bool:
        return "-" in self.files.values()

    def refuse_one_file_twice(self) -> None:
        seen: dict[str, str] = {}
        for flag, file in self.files.items():
            other = seen.setdefault(_place(file), flag)
            if other != flag:
                where = "stdout" if file == "-" else file
                words = f"{other} and {flag} both write to {where}"
                raise UsageFailure(words, "give each a file of its own")

    def write_so_far(self, several: Reports) -> int:
        """Writes what came into files that may be written again; 2 where one cannot."""
        files = self.files.items()
        again = {flag: file for flag, file in files if file != STDERR and keeps_changing(file)}
        return Forms(again).write(several, None)

    def write(self, several: Reports, code: int | None, *, said: str = "") -> int:
        """The exit code, which is 2 in place of 0 where a form cannot be written.

        Args:
            code: of the checks; None while more are to come.
            said: a message that is on stderr already.
        """
        if not self.files:
            return code or 0
        from ..render.source_places import with_origin

        several, texts = with_origin(several), dict[str, tuple[str, str, str]]()
        # All are made before one is written: then they change at one moment. Two in one place were refused.
        for flag, file in self.files.items():
            texts.setdefault(_place(file), (flag, file, maker_of(flag)(several, code)))
        failures = [_write_form(*text) for text in texts.values()]
        failures += [_summarize(several)] if "--github" in self.files else []
        for failure in filter(None, failures):
            if str(failure) != said:
                print_failure(failure)
        return code or (2 if any(failures) else 0)


def _place(file: str) -> str:
    return file if file == "-" else os.path.realpath(file)


def _write_form(flag: str, file: str, text: str) -> UsageFailure | None:
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
    from ..render.github import MOST_BYTES, markdown

    file = Path(os.environ.get("GITHUB_STEP_SUMMARY") or os.devnull)
    try:
        with open_in_place(file, "ab") as stream:
            stream.write(markdown(several, 0, MOST_BYTES - stream.tell()).encode())
    except OSError as error:
        return UsageFailure(f"--github: the summary {file} cannot be written, {error.strerror}")
    return None


def write_failure(forms: Forms, failure: Failure, line: str, target: str = "") -> int:
    """Writes a failure that is on stderr already in each form; `line` is the command as typed."""
    made = Reports(reports=(failed_report(failure, line, target),))
    return forms.write(made, failure.exit_code, said=str(failure))
