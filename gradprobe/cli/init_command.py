"""`gradprobe init`: files that a user starts from."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from ..commands import starter_files as scaffold
from ..inputs.options import FAMILIES
from ..model.failures import UsageFailure
from ..render.terminal import note, write_stdout
from .error_output import failures_told
from .shared_options import Traceback


def init(
    path: Annotated[
        str | None,
        typer.Argument(
            metavar="PATH", help=f"The file to write (default: {scaffold.DEFAULT_TEMPLATE}, or the workflow's)"
        ),
    ] = None,
    family: Annotated[
        str | None, typer.Option(help=f"Family of your kernel: {' or '.join(FAMILIES)} (default: softmax)")
    ] = None,
    ci: Annotated[
        str | None,
        typer.Option(
            "--ci", metavar="NAME", help=f"Write a workflow for {' or '.join(scaffold.CIS)}, in place of an adapter"
        ),
    ] = None,
    target: Annotated[
        str | None,
        # typer 0.27 takes a metavar that is the parameter's name for the option's.
        typer.Option(
            "--target", metavar="TARGET", help="What the workflow checks (default: as pyproject.toml says, else lazy)"
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over a file that is there")] = False,
    show_traceback: Traceback = False,
) -> None:
    """Write a commented adapter for a kernel of your own, which runs and matches as it is; or a CI workflow."""
    with failures_told(None, "gradprobe init", show_traceback, runs=False):
        if ci is None:
            if target is not None:
                what = "init: --target says what a workflow checks, and no workflow is asked for"
                raise UsageFailure(what, "add --ci github")
            path = path or scaffold.DEFAULT_TEMPLATE
            scaffold.write_adapter(Path(path), family or FAMILIES[0], force=force)
            write_stdout(f"wrote {path}\nnext: {shlex.join(['gradprobe', 'check', f'{path}:backward'])}\n")
            return
        if family is not None:
            what = "init: --family says which adapter to write, and --ci writes a workflow"
            raise UsageFailure(what, "drop one of them")
        path = path or scaffold.DEFAULT_CI
        scaffold.write_workflow(Path(path), ci, target, force=force)
        wheel = scaffold.wheel_command()
        added = [*([scaffold.VENDOR] if wheel else []), path]
        steps = [wheel] if wheel else []
        steps.append(f"{shlex.join(['git', 'add', *added])}, commit and push")
        write_stdout(f"wrote {path}\n" + "".join(f"next: {step}\n" for step in steps))
        if not Path(".git").exists():
            words = "GitHub reads workflows at the root of a repository, which this folder is not"
            note(words)
