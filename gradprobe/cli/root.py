"""The `gradprobe` command and its commands, each imported when it is called."""

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
from typer.core import TyperGroup

from ..inputs.options import MOVED
from ..inputs.versions import installed_versions
from ..model.failures import INTERRUPTED, UsageFailure
from ..model.writing import safe
from ..render.files import FILES, FORMS, files_in
from .command import LINE
from .option_rows import ShortHelp, option
from .report_forms import Forms, write_failure

COMMANDS = (
    *("check", "watch", "audit", "diff", "fix", "shrink", "strides", "lint", "sweep", "mutate"),
    *("run", "show", "doctor", "init", "explain"),
)
_PLACES = {
    **dict.fromkeys(("audit", "doctor", "explain", "init", "lint", "run"), "single_commands"),
    **dict.fromkeys(("diff", "fix", "show", "shrink"), "last_check_commands"),
    **dict.fromkeys(("mutate", "strides", "sweep"), "plan_commands"),
}


@functools.cache
def imported(name: str) -> Any:
    module = _PLACES.get(name, f"{name}_command")
    found = getattr(importlib.import_module(f".{module}", __package__), name)
    alone = typer.Typer(add_completion=False)
    # A line's end in a docstring is none in the help.
    paragraphs = (inspect.getdoc(found) or "").split("\n\n")
    words = "\n\n".join(" ".join(lines.split()) for lines in paragraphs)
    alone.command(name, cls=ShortHelp, help=words)(found)
    return typer.main.get_command(alone)


def root(
    version: Annotated[bool, option("--version", "Versions and device, in one line")] = False,
) -> None:
    if version:
        from ..targets.builtin import has_driver

        device = "GPU" if has_driver() else f"cpu ({platform.machine()})"
        words = {**installed_versions(), "device": device}
        typer.echo(" ".join(f"{name} {value}" for name, value in words.items()))
        raise typer.Exit


# New objects between two searches for garbage; 700 is Python's own.
_RARELY = 100_000
# What the parser raises: typer names only this kind of it.
_UsageError: Any = typer.BadParameter.__bases__[0]


class Commands(TyperGroup):
    """What the parser refuses is written in each form asked for too."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands.update(dict.fromkeys(COMMANDS))  # type: ignore[arg-type]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return imported(cmd_name) if cmd_name in COMMANDS else None

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta[LINE] = shlex.join(["gradprobe", *args])
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] in MOVED:
            raise _UsageError(f"{args[0]} is no command any more: {MOVED[args[0]]}", ctx)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        words = shlex.split(ctx.meta[LINE])[1:]
        try:
            return super().invoke(ctx)
        except _UsageError as error:
            if (gone := getattr(error, "option_name", "")) in MOVED:
                error.message = f"{gone} is no option any more: {MOVED[gone]}"
                error.possibilities = []
            error.message = safe(error.message)
            flags = FILES.get(words[0], ()) if words[0] in COMMANDS else tuple(FORMS)
            failure = UsageFailure(error.format_message())
            write_failure(Forms(files_in(words, flags)), failure, ctx.meta[LINE])
            raise
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None


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
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper):
            # a path may hold what the terminal's encoding does not
            stream.reconfigure(errors="backslashreplace")
    # Importing torch makes a million objects and hardly any garbage; to look for it as often as usual only costs time.
    gc.set_threshold(_RARELY)
    app(prog_name="gradprobe")
