"""The `gradprobe` command: its name, version and completion, and its commands, each imported when it is called."""

from __future__ import annotations

import functools
import gc
import importlib
import inspect
import io
import os
import platform
import shlex
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from ..inputs.options import MOVED
from ..inputs.versions import installed_versions
from ..model.failures import INTERRUPTED, UsageFailure
from ..model.writing import safe
from ..render.files import FORMS, files_in
from .error_output import write_failure
from .report_forms import Forms
from .shared_options import ShortHelp

# Each command, which is a function of its own name in NAME_command.py, with the first paragraph of its help.
COMMANDS = {
    "check": "Run a kernel beside the reference, diff every intermediate, and point at the first mismatch.",
    "watch": "Check a kernel again each time that its file, or one that it imports, is saved, and say what changed.",
    "audit": "Judge a reference of your own, and name its first wrong formula with its line.",
    "diff": "Show one intermediate close up: its error map over tiles and its wrong rows, actual beside expected.",
    "fix": "Check a kernel, and where it is wrong show the smallest edit that was tried and makes everything match.",
    "shrink": (
        "Find the smallest case that fails in the same way, and write it as a command line, a script and a pytest test."
    ),
    "strides": "Run a kernel with every tensor in every layout, and say which it gets wrong.",
    "lint": (
        "Read a Triton kernel's pointers, and name each that advances by another tensor's stride, without a number run."
    ),
    "sweep": "Check many cases, several at a time, the cheapest first.",
    "mutate": "Plant faults that people make in a kernel, one at a time, and say which of them its gate lets pass.",
    "run": (
        "Run a program with its attention function watched, and check that with the program's real inputs and dO."
    ),
    "show": "Show a saved report in any form, without running anything: made on one machine, read on any.",
    "explain": "Say what a word of a report means, how it looks, where it was seen for real, and what to try.",
    "doctor": (
        "Climb a ladder from the simplest kernels up, on this machine or with TARGET, and say what really runs."
    ),
    "init": "Write a commented adapter for a kernel of your own, which runs and matches as it is; or a CI workflow.",
}


class LazyCommand(TyperCommand):
    """A command of which the name and the first paragraph are known; the list of commands needs no more."""

    def imported(self) -> Any:
        assert self.name is not None
        return imported(self.name)

    def make_context(self, *words: Any, **more: Any) -> Any:
        return self.imported().make_context(*words, **more)


@functools.cache
def imported(name: str) -> Any:
    found = getattr(importlib.import_module(f".{name}_command", __package__), name)
    if isinstance(found, typer.Typer):
        return typer.main.get_command(found)
    alone = typer.Typer(add_completion=False)
    # A line's end in a docstring is none in the help.
    paragraphs = (inspect.getdoc(found) or "").split("\n\n")
    told = "\n\n".join(" ".join(lines.split()) for lines in paragraphs)
    alone.command(name, cls=ShortHelp, help=told)(found)
    return typer.main.get_command(alone)


def root(
    version: Annotated[
        bool, typer.Option("--version", help="Versions and device, in one line")
    ] = False,
) -> None:
    if version:
        words = {**installed_versions(), "device": _device()}
        typer.echo(" ".join(f"{name} {value}" for name, value in words.items()))
        raise typer.Exit


def _device() -> str:
    from ..targets.builtin import has_driver

    return "GPU" if has_driver() else f"cpu ({platform.machine()})"


# New objects between two searches for garbage; 700 is Python's own.
_RARELY = 100_000
# What the parser raises: typer names only this kind of it.
_UsageError: Any = typer.BadParameter.__bases__[0]
_WORDS = "gradprobe.words"


class Commands(TyperGroup):
    """Every command, none of them imported. What the parser refuses is written in each form asked for too."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands.update({name: LazyCommand(name, help=COMMANDS[name]) for name in COMMANDS})

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
            error.message = safe(error.message)
            forms = Forms(files_in(words, _flags_of(words)))
            if forms.files:
                failure = UsageFailure(error.format_message())
                write_failure(forms, failure, shlex.join(["gradprobe", *words]))
            raise
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None


def _flags_of(words: list[str]) -> list[str]:
    """The forms that the command takes which is named; all, where there is no such command."""
    if not words or words[0] not in COMMANDS:
        return list(FORMS)
    options = {option for parameter in imported(words[0]).params for option in parameter.opts}
    return [flag for flag in FORMS if flag in options]


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
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by who started this
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(
            stream, io.TextIOWrapper
        ):  # a path may hold what the terminal's encoding does not
            stream.reconfigure(errors="backslashreplace")
    # Importing torch makes a million objects and hardly any garbage; to look for it as often as usual only costs time.
    gc.set_threshold(_RARELY)
    app(prog_name="gradprobe")
