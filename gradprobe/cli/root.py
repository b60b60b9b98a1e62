"""The `gradprobe` command: its name, version and completion, and its commands, each imported when it is called."""

from __future__ import annotations

import functools
import gc
import importlib
import inspect
import io
import os
import platform
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from ..inputs.versions import installed_versions
from ..model.failures import UsageFailure
from ..render.terminal import print_failure, write_stdout
from .error_output import CommandGroup
from .shared_options import ShortHelp, with_word

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


class OptionalWordCommand(ShortHelp):
    """A command with --battery or --ray, which may stand without its word."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, with_word(args))


class LazyCommand(TyperCommand):
    """A command of which the name and the first paragraph are known; the list of commands needs no more."""

    def imported(self) -> Any:
        """The command itself."""
        assert self.name is not None
        return imported(self.name)

    def make_context(self, *words: Any, **more: Any) -> Any:
        return self.imported().make_context(*words, **more)


@functools.cache
def imported(name: str) -> Any:
    """A command, made once in a process."""
    found = getattr(importlib.import_module(f".{name}_command", __package__), name)
    if isinstance(found, typer.Typer):
        return typer.main.get_command(found)
    alone = typer.Typer(add_completion=False)
    # A line's end in a docstring is none in the help.
    paragraphs = (inspect.getdoc(found) or "").split("\n\n")
    told = "\n\n".join(" ".join(lines.split()) for lines in paragraphs)
    alone.command(name, cls=OptionalWordCommand, help=told)(found)
    return typer.main.get_command(alone)


def root(
    version: Annotated[
        bool, typer.Option("--version", help="Versions and device, in one line")
    ] = False,
) -> None:
    if version:
        typer.echo(
            " ".join(
                f"{name} {value}"
                for name, value in {**installed_versions(), "device": _device()}.items()
            )
        )
        raise typer.Exit


def _device() -> str:
    """The first GPU that NVIDIA's driver tells of, or the processor."""
    from ..targets.builtin import has_driver

    for told in (
        sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")) if has_driver() else ()
    ):
        for line in told.read_text().splitlines():
            if line.startswith("Model:"):
                return line.removeprefix("Model:").strip()
    return "GPU" if has_driver() else f"cpu ({platform.machine()})"


INSTALL, SHOW = "--install-completion", "--show-completion"
# What a person runs once in each shell. The script is the same until the parser is another one.
_STEPS = {
    "bash": (
        "gradprobe --show-completion > ~/.gradprobe-completion.bash",
        "echo 'source ~/.gradprobe-completion.bash' >> ~/.bashrc",
    ),
    "zsh": (
        "gradprobe --show-completion > ~/.gradprobe-completion.zsh",
        "echo 'autoload -Uz compinit && compinit; source ~/.gradprobe-completion.zsh' >> ~/.zshrc",
    ),
    "fish": ("gradprobe --show-completion > ~/.config/fish/completions/gradprobe.fish",),
}


def _tell_steps(context: Any, parameter: Any, value: Any) -> Any:
    """Prints the steps for the shell that is named, or else for the one that this runs in, and ends the command."""
    if not value or context.resilient_parsing:
        return value
    shell = value if isinstance(value, str) else _shell()
    if shell not in _STEPS:
        failure = UsageFailure(
            f"{INSTALL}: no steps are known for {shell!r}", f"known: {', '.join(_STEPS)}"
        )
        print_failure(failure)
        context.exit(failure.exit_code)
    steps = "".join(f"  {step}\n" for step in _STEPS[shell])
    write_stdout(
        f"For completion in {shell}, run this once; it works in every shell that you open then:\n\n{steps}"
    )
    context.exit(0)
    return None


def _shell() -> str:
    try:
        import shellingham  # type: ignore[import-untyped]

        return str(shellingham.detect_shell()[0])
    except (ImportError, RuntimeError, OSError):  # what is none that it knows, or cannot be asked
        return os.path.basename(os.environ.get("SHELL", "")) or "this shell"


# New objects between two searches for garbage; 700 is Python's own.
_RARELY = 100_000


class Commands(CommandGroup):
    """Every command, none of them imported."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands.update(
            {name: LazyCommand(name, help=first) for name, first in COMMANDS.items()}
        )

    def get_params(self, ctx: Any) -> list[Any]:
        """The parser's parameters, of which typer's own that installs completion says instead what to run."""
        found: list[Any] = list(super().get_params(ctx))
        for parameter in found:
            if INSTALL in parameter.opts:
                parameter.callback, parameter.help = (
                    _tell_steps,
                    "Say what to run for completion in your shell",
                )
            if SHOW in parameter.opts:
                parameter.help = "Print the script of that completion"
        return found


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
