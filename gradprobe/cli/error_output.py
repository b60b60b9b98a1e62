"""What a command says on stderr: its failures, also those of the parser, in each form that is asked for too."""

from __future__ import annotations

import contextlib
import shlex
import traceback
from collections.abc import Iterator, Sequence
from typing import Any

import typer
from typer.core import TyperGroup

from ..inputs.options import GONE, MOVED
from ..inputs.versions import refuse_untested
from ..model.failures import INTERRUPTED, Failure, UsageFailure, as_failure
from ..model.writing import safe
from ..render.files import FORMS, files_in
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
        from ..model.documents import Reports
        from ..model.report import failed_report

        asked = forms if isinstance(forms, Forms) else Forms.json(forms)
        made = Reports(reports=(failed_report(failure, repro_command, target),))
        raise typer.Exit(asked.write(made, failure.exit_code, said=str(failure))) from None


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


# What the parser raises: typer names only this kind of it.
_UsageError: Any = typer.BadParameter.__bases__[0]
_WORDS = "gradprobe.words"


class CommandGroup(TyperGroup):
    """The commands, as one."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta[_WORDS] = list(args)
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] in MOVED:
            raise _UsageError(f"{args[0]} is no command any more: {MOVED[args[0]]}", ctx)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        words = ctx.meta[_WORDS]
        try:
            return super().invoke(ctx)
        except _UsageError as error:
            if gone := _where_it_went(getattr(error, "option_name", "")):
                error.message, error.possibilities = gone, []
            error.message = safe(error.message)
            options = self._options(words)
            forms = Forms(files_in(words, [flag for flag in FORMS if flag in options]))
            if forms.files:
                _write(forms, words, error.format_message())
            raise
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None

    def _options(self, words: Sequence[str]) -> set[str]:
        """The options of the command that is named; all, where there is no such command."""
        command = self.commands.get(words[0]) if words else None
        if command is None:
            return set(FORMS)
        imported = getattr(command, "imported", lambda: command)()
        return {option for parameter in imported.params for option in parameter.opts}


def _where_it_went(flag: str) -> str:
    """Of an option that is no more: one line; "" of any other."""
    words = GONE.get(flag.removeprefix("--"))
    return f"{flag} {words}" if words else ""


def _write(forms: Forms, words: Sequence[str], message: str) -> None:
    from ..model.documents import Reports
    from ..model.report import failed_report

    report = failed_report(UsageFailure(message), shlex.join(["gradprobe", *words]))
    forms.write(Reports(reports=(report,)), UsageFailure.exit_code)
