"""`gradprobe init`: files that a user starts from, and what can be checked already."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from ..commands import starter_files as starter
from ..inputs.options import FAMILIES
from ..model.failures import UsageFailure
from ..render.terminal import note, width, write_stdout
from . import shared_options as shared
from .own_process import apart
from .report_forms import failures_told, show_document

_PATH = f"The file to write (default: {starter.ADAPTER}, or the workflow's); the one to --list"
_FAMILY = f"Family of your kernel: {' or '.join(FAMILIES)} (default: softmax)"
_TARGET = typer.Option(
    "--target",
    metavar="TARGET",
    help="What the workflow checks (default: as pyproject.toml says, else lazy)",
)
_JSON = "Write that list as JSON; - for stdout"


def init(
    path: Annotated[str | None, shared.argument("PATH", _PATH)] = None,
    family: Annotated[str | None, shared.option("--family", _FAMILY)] = None,
    ci: Annotated[str | None, shared.option("--ci")] = None,
    target: Annotated[str | None, _TARGET] = None,
    is_listed: Annotated[bool, shared.option("--list")] = False,
    json_file: Annotated[str | None, shared.option("--json", _JSON)] = None,
    force: Annotated[bool, shared.option("--force", "Write over a file that is there")] = False,
    isolate: shared.Isolate = True,
    show_traceback: shared.Traceback = False,
) -> None:
    """Write a commented adapter for a kernel of your own, which runs and matches as it is; or a CI workflow.

    With --list nothing is written: it says what each built-in target takes and exposes, and why one cannot run here;
    of FILE.py, which is imported in a process of its own, what to type for each function.
    """
    with failures_told(None, "gradprobe init", show_traceback, runs=False):
        given = {"--family": family, "--target": target, "--json": json_file, "--force": force}
        if is_listed:
            _refuse(given | {"--ci": ci}, "--list", {"--json"})
            file = "" if path is None else _existing(path)
            how = {"isolate": isolate, "show_traceback": show_traceback}
            raise typer.Exit(apart(_list, file, json_file, target=file, **how))
        if ci is not None:
            _refuse(given, "--ci", {"--target", "--force"})
            _write_workflow(path or starter.WORKFLOW, ci, target, force=force)
            return
        _refuse(given, "an adapter", {"--family", "--force"})
        path = path or starter.ADAPTER
        starter.write_adapter(Path(path), family or FAMILIES[0], force=force)
        command = shlex.join(["gradprobe", "check", f"{path}:backward"])
        write_stdout(f"wrote {path}\nnext: {command}\n")


def _refuse(given: Mapping[str, object], what: str, taken: set[str]) -> None:
    """Raises UsageFailure for an option that says nothing of what is asked for."""
    for flag, word in given.items():
        if word and flag not in taken:
            raise UsageFailure(f"init: {flag} says nothing of {what}", f"drop {flag}")


def _write_workflow(path: str, ci: str, target: str | None, *, force: bool) -> None:
    starter.write_workflow(Path(path), ci, target, force=force)
    wheel = starter.wheel_command()
    added = [starter.VENDOR, path] if wheel else [path]
    commit = f"{shlex.join(['git', 'add', *added])}, commit and push"
    steps = [step for step in (wheel, commit) if step]
    write_stdout(f"wrote {path}\n" + "".join(f"next: {step}\n" for step in steps))
    if not Path(".git").exists():
        note("GitHub reads workflows at the root of a repository, which this folder is not")


def _list(file: str, json_file: str | None) -> int:
    """Lists the functions of a file; "" for what is built in."""
    from ..commands.target_list import builtin_targets, found_in, render_builtin, render_file

    listed = found_in(file) if file else builtin_targets()
    lines = render_file(listed, width()) if file else render_builtin(listed, width())
    show_document(json_file, listed.as_json(), lines)
    return 0


def _existing(word: str) -> str:
    """The file, as it was named. Raises UsageFailure where there is none, with one that may be meant."""
    from ..targets.find import existing_file

    if not word.endswith(".py"):
        words = f"init --list {word}: expected FILE.py"
        raise UsageFailure(words, "without it, what is built in is listed")
    existing_file(Path(word), word)
    return word
