"""The `gradprobe` command: its parts, each imported when it is called."""

from __future__ import annotations

import gc
import io
import os
import sys
from typing import Any

import typer

from ..model.failures import Failure
from ..render.terminal import print_failure
from ..runtime.versions import refuse_click
from .commands import COMMANDS, Unimported
from .completion import with_our_words
from .parse_errors import Group
from .root import root

# New objects between two searches for garbage; 700 is Python's own.
_RARELY = 100_000


class Commands(Group):
    """Every command, none of them imported."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands.update({name: Unimported(name, help=first) for name, first in COMMANDS.items()})

    def get_params(self, ctx: Any) -> list[Any]:
        return with_our_words(super().get_params(ctx))


app = typer.Typer(
    name="gradprobe",
    cls=Commands,
    help="Runs an attention backward kernel beside a float64 reference, and points at the first wrong number.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.callback(invoke_without_command=True)(root)


def main() -> None:
    """The `gradprobe` command."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by who started this
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a path may hold what the terminal's encoding does not
            stream.reconfigure(errors="backslashreplace")
    try:
        refuse_click(typer.__version__)
    except Failure as failure:
        print_failure(failure)
        sys.exit(failure.exit_code)
    # Importing torch makes a million objects and hardly any garbage; to look for it as often as usual only costs time.
    gc.set_threshold(_RARELY)
    app(prog_name="gradprobe")
