"""`gradprobe init`: files that a user starts from, and what can be checked already."""

from __future__ import annotations

import shlex
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from ..commands import starter_files as scaffold
from ..inputs.options import FAMILIES
from ..model.failures import UsageFailure, did_you_mean
from ..render.terminal import dump, note, show, width, write_stdout
from .error_output import failures_told
from .own_process import apart
from .shared_options import Isolate, Traceback


def init(
    path: Annotated[
        str | None,
        typer.Argument(
            metavar="PATH",
            help=f"The file to write (default: {scaffold.DEFAULT_TEMPLATE}, or the workflow's); the one to --list",
        ),
    ] = None,
    family: Annotated[
        str | None,
        typer.Option(help=f"Family of your kernel: {' or '.join(FAMILIES)} (default: softmax)"),
    ] = None,
    ci: Annotated[
        str | None,
        typer.Option(
            "--ci",
            metavar="NAME",
            help=f"Write a workflow for {' or '.join(scaffold.CIS)}, in place of an adapter",
        ),
    ] = None,
    target: Annotated[
        str | None,
        # typer 0.27 takes a metavar that is the parameter's name for the option's.
        typer.Option(
            "--target",
            metavar="TARGET",
            help="What the workflow checks (default: as pyproject.toml says, else lazy)",
        ),
    ] = None,
    is_listed: Annotated[
        bool,
        typer.Option(
            "--list", help="List what can be checked here, or of the functions of FILE.py"
        ),
    ] = False,
    json_file: Annotated[
        str | None,
        typer.Option("--json", metavar="FILE", help="Write that list as JSON; - for stdout"),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Write over a file that is there")
    ] = False,
    isolate: Isolate = True,
    show_traceback: Traceback = False,
) -> None:
    """Write a commented adapter for a kernel of your own, which runs and matches as it is; or a CI workflow.

    With --list nothing is written: it says what each built-in target takes and exposes, and why one cannot run here;
    of FILE.py, which is imported in a process of its own, what to type for each function.
    """
    with failures_told(None, "gradprobe init", show_traceback, runs=False):
        if is_listed:
            if family or ci or target or force:
                raise UsageFailure(
                    "init: --list writes nothing", "drop --family, --ci, --target and --force"
                )
            list_it = partial(
                apart, _list_file, path, json_file, isolate=isolate, show_traceback=show_traceback
            )
            raise typer.Exit(
                _list_builtins(json_file) if path is None else list_it(target=_existing(path))
            )
        if json_file is not None:
            raise UsageFailure("init: --json holds what --list lists", "add --list")
        if ci is None:
            if target is not None:
                what = "init: --target says what a workflow checks, and no workflow is asked for"
                raise UsageFailure(what, "add --ci github")
            path = path or scaffold.DEFAULT_TEMPLATE
            scaffold.write_adapter(Path(path), family or FAMILIES[0], force=force)
            write_stdout(
                f"wrote {path}\nnext: {shlex.join(['gradprobe', 'check', f'{path}:backward'])}\n"
            )
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


def _list_builtins(json_file: str | None) -> int:
    """Lists the built-in targets; the exit code."""
    from ..commands.target_list import as_json, catalogue, render

    entries = catalogue()
    dump(json_file, as_json(entries))
    if json_file != "-":
        show(render(entries, width()))
    return 0


def _list_file(file: str, json_file: str | None) -> int:
    """Lists the functions of a file; the exit code."""
    from ..commands.target_list import file_as_json, found_in, render_file

    found = found_in(file)
    dump(json_file, file_as_json(found))
    if json_file != "-":
        show(render_file(found, width()))
    return 0


def _existing(word: str) -> str:
    """The file, as it was named.

    Raises:
        UsageFailure: there is none, with one that may be meant.
    """
    from ..targets.find import existing_file

    if not word.endswith(".py"):
        way_out = did_you_mean(word, map(str, Path(word).parent.glob("*.py")), "")
        raise UsageFailure(
            f"init --list {word}: expected FILE.py",
            way_out or "without it, what is built in is listed",
        )
    existing_file(Path(word), word)
    return word
