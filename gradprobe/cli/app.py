"""The `gradprobe` command, put together from its parts."""

from __future__ import annotations

import gc
import io
import os
import sys

import typer

from ..failures import Failure
from ..screen import say
from ..versions import refuse_click
from .baseline import baseline
from .check import check
from .diff import diff
from .init import init
from .lint import lint
from .mutate import mutate
from .root import root
from .run import run_
from .shrink import shrink
from .strides import strides
from .sweep import sweep
from .targets import targets
from .unread import Group

app = typer.Typer(
    name="gradprobe",
    cls=Group,
    help="Runs an attention backward kernel beside a float64 reference, and points at the first wrong number.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.callback(invoke_without_command=True)(root)
app.command()(check)
app.command()(diff)
app.command()(shrink)
app.command()(strides)
app.command()(lint)
app.command()(sweep)
app.command()(mutate)
app.command("run")(run_)
app.command()(targets)
app.command()(init)
app.add_typer(baseline, name="baseline")

# New objects between two searches for garbage; 700 is Python's own.
_RARELY = 100_000


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
        say(failure)
        sys.exit(failure.exit_code)
    # Importing torch makes a million objects and hardly any garbage; to look for it as often as usual only costs time.
    gc.set_threshold(_RARELY)
    app(prog_name="gradprobe")
