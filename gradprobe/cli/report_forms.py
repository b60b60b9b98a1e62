"""Forms of a report for CI: their options, and the one place that writes what was asked for."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..model.documents import Reports
from ..model.failures import UsageFailure
from ..model.report import Report
from ..model.writing import inert, open_in_place, replace_file
from ..render.files import FORMS, STDERR, keeps_changing, maker_of
from ..render.terminal import (
    dump,
    print_failure,
    show,
    takes_stderr,
    terminal,
    write_stdout,
)
from .shared_options import with_group

if TYPE_CHECKING:
    from rich.text import Text

DETAILS = "Show all of a report, and not one screen of it"
Details = Annotated[
    bool, typer.Option("--details", envvar="GRADPROBE_DETAILS", show_envvar=False, help=DETAILS)
]


def with_forms(
    command: Callable[..., None], flags: Iterable[str] = tuple(FORMS), *, details: bool = True
) -> Callable[..., None]:
    """Gives a command the option of every form, or of some; it receives what was asked for as `forms`.

    Args:
        details: whether --details is an option too; a command without it shows all.
    """
    names = {f"{flag[2:]}_file": flag for flag in flags}

    def forms_of(**words: Any) -> Forms:
        files = {
            flag: STDERR if words[name] is True else words[name] for name, flag in names.items()
        }
        given = {flag: file for flag, file in files.items() if file not in (None, False)}
        return Forms(given, details=words.get("details", True))

    options = {"details": (False, Details)} if details else {}
    options |= {name: _option(flag) for name, flag in names.items()}
    return with_group(command, "forms", forms_of, options)


def _option(flag: str) -> tuple[Any, Any]:
    if FORMS[flag].unfinished is None:
        return False, Annotated[bool, typer.Option(flag, help=FORMS[flag].help)]
    described = typer.Option(flag, metavar="FILE", help=FORMS[flag].help)
    return None, Annotated[str | None, described]


with_page = partial(with_forms, flags=("--json", "--html"))
"""The same of what is of no use to CI."""


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

    @classmethod
    def json(cls, file: str | None) -> Forms:
        return cls({} if file is None else {"--json": file})

    def show(self, report: Report, rest: str = "") -> None:
        """Shows a report, unless stdout is a document's. What ended it is said on stderr before.

        Args:
            rest: the command that shows all of it, where that is not the same one with --details.
        """
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
        """Writes what came into every file that may be written again, so that nothing is lost, and none is right yet.

        Returns:
            0, or 2 where a file cannot be written.
        """
        files = {
            flag: file
            for flag, file in self.files.items()
            if file != STDERR and keeps_changing(file)
        }
        return Forms(files).write(several, None)

    def write(self, several: Reports, code: int | None, *, said: str = "") -> int:
        """Writes every form that was asked for, and says on stderr which of them cannot be written.

        Args:
            code: the exit code that the checks came to; None as long as more of them are to come.
            said: a message that is on stderr already.

        Returns:
            The exit code: 2 in place of 0 where something could not be written. A mismatch stays 1, and a failure what
            it is: neither may be taken for the other by a script that asks only for the code.
        """
        failures = [failure for failure in self._attempts(several, code) if failure is not None]
        for failure in failures:
            if str(failure) != said:
                print_failure(failure)
        return code or (2 if failures else 0)

    def _attempts(self, several: Reports, code: int | None) -> Iterator[UsageFailure | None]:
        # Two in one place were refused, and only the first says so there.
        places = {_place(file): (flag, file) for flag, file in reversed(list(self.files.items()))}
        if not places:
            return
        from ..render.source_places import with_origin

        several = with_origin(several)
        # All are made before one is written: then they change at one moment.
        texts = [(*place, maker_of(place[0])(several, code)) for place in places.values()]
        for flag, file, text in reversed(texts):
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
    from ..render import markdown

    if not (summary := os.environ.get("GITHUB_STEP_SUMMARY")):
        return None
    file = Path(summary)
    try:
        there = file.stat().st_size if file.exists() else 0
        with open_in_place(file, "ab") as stream:
            stream.write(markdown.text(several, 0, markdown.MOST_BYTES - there).encode())
    except OSError as error:
        words = f"--github: the summary {summary} cannot be written"
        return UsageFailure(f"{words}, {error.strerror}")
    return None
