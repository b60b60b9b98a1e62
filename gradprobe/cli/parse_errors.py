"""Command lines that the parser refuses, told in the forms that they ask for besides the parser's own words."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperGroup

from ..model.failures import INTERRUPTED, UsageFailure
from ..render.incomplete import FORMS, files_in, own_words

if TYPE_CHECKING:
    from .forms import Forms

# What the parser raises: typer names only this kind of it.
_UsageError: Any = typer.BadParameter.__bases__[0]
_WORDS = "gradprobe.words"


class Group(TyperGroup):
    """The commands, as one."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta[_WORDS] = list(args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        words = ctx.meta[_WORDS]
        try:
            return super().invoke(ctx)
        except _UsageError as error:
            forms = forms_in(words, self._options(words))
            if forms.files or forms.github:
                _write(forms, words, error.format_message())
            raise
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None

    def _options(self, words: Sequence[str]) -> set[str]:
        """The options of the command that is named; all, where there is no such command."""
        command = self.commands.get(words[0]) if words else None
        if command is None:
            return {*FORMS, "--github"}
        imported = getattr(command, "imported", lambda: command)()
        return {option for parameter in imported.params for option in parameter.opts}


def forms_in(words: Sequence[str], options: set[str]) -> Forms:
    """The forms that the words of a command line ask for, of those that it may take."""
    from .forms import Forms

    found = files_in(words, [flag for flag in FORMS if flag in options])
    return Forms(found, github="--github" in own_words(words) and "--github" in options)


def _write(forms: Forms, words: Sequence[str], message: str) -> None:
    from ..model.documents import Reports
    from ..model.report import failed_report

    report = failed_report(UsageFailure(message), shlex.join(["gradprobe", *words]))
    forms.write(Reports(reports=(report,)), UsageFailure.exit_code)
