"""The commands: what each is called and begins its help with, and the command itself where that is asked for."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import typer
from typer.core import TyperCommand

# Each command, which is a function of its own name in a module of that name, with the first paragraph of its help.
COMMANDS = {
    "check": "Run a kernel beside the reference, diff every intermediate, and point at the first mismatch.",
    "diff": "Show one intermediate close up: its error map over tiles and its wrong rows, actual beside expected.",
    "shrink": (
        "Find the smallest case that fails in the same way, and write it as a command line, a script and a pytest test."
    ),
    "strides": "Run a kernel with every tensor in every layout, and say which it gets wrong.",
    "lint": (
        "Read a Triton kernel's pointers, and name each that advances by another tensor's stride, without a number run."
    ),
    "sweep": "Check a matrix of cases, several at a time.",
    "mutate": "Plant faults that people make in a kernel, one at a time, and say which of them its gate lets pass.",
    "run": ("Run a program with its attention function watched, and check that with the program's real inputs and dO."),
    "show": "Show a saved report in any form, without running anything: made on one machine, read on any.",
    "compare": "Say what changed from one saved report to another, and fail where something got worse.",
    "targets": "List what can be checked here, with what each takes and exposes, and why something cannot.",
    "init": "Write a commented adapter for a kernel of your own, which runs and matches as it is; or a CI workflow.",
    "baseline": "Keep the errors of a right kernel, and fail where one grows while still within its budget.",
}


class Unimported(TyperCommand):
    """A command of which the name and the first paragraph are known; the list of commands needs no more."""

    def imported(self) -> Any:
        """The command itself."""
        assert self.name is not None
        found = getattr(importlib.import_module(f".{self.name}", __package__), self.name)
        if isinstance(found, typer.Typer):
            return typer.main.get_command(found)
        alone = typer.Typer(add_completion=False)
        # A line's end in a docstring is none in the help.
        paragraphs = (inspect.getdoc(found) or "").split("\n\n")
        alone.command(self.name, help="\n\n".join(" ".join(lines.split()) for lines in paragraphs))(found)
        return typer.main.get_command(alone)

    def make_context(self, *words: Any, **more: Any) -> Any:
        return self.imported().make_context(*words, **more)
