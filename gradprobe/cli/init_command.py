"""`gradprobe init`: files that a user starts from, and what can be checked already."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from ..commands import starter_files as starter
from ..inputs.options import FAMILIES
from ..model.failures import UsageFailure
from ..render.terminal import note, width, write_stdout
from .call import Call, command
from .options import argument, option
from .report_forms import show_document

_PATH = f"The file to write (default: {starter.ADAPTER}, or the workflow's); the one to --list"
_FAMILY = f"Family of your kernel: {' or '.join(FAMILIES)} (default: softmax)"
_TARGET = "What the workflow checks (default: as pyproject.toml says, else lazy)"
_LIST = "List what can be checked here, or of the functions of FILE.py"
_JSON = "Write that list as JSON; - for stdout"


@command("isolate", has_case=False, is_run=False)
def init(
    call: Call,
    path: Annotated[str | None, argument("PATH", _PATH)] = None,
    family: Annotated[str | None, option("--family", _FAMILY)] = None,
    ci: Annotated[
        str | None, option("--ci", "Write a workflow for github, and no adapter", "NAME")
    ] = None,
    target: Annotated[str | None, option("--target", _TARGET, "TARGET")] = None,
    is_listed: Annotated[bool, option("--list", _LIST)] = False,
    json_file: Annotated[str | None, option("--json", _JSON)] = None,
    force: Annotated[bool, option("--force", "Write over a file that is there")] = False,
) -> int:
    """Write a commented adapter for a kernel of your own, which runs and matches as it is; or a CI workflow.

    With --list nothing is written: it says what each built-in target takes and exposes, and why one cannot run here;
    of FILE.py, which is imported in a process of its own, what to type for each function.
    """
    given = {"--family": family, "--target": target, "--json": json_file, "--force": force}
    what, taken = "an adapter", {"--family", "--force"}
    if is_listed:
        given["--ci"], what, taken = ci, "--list", {"--json"}
    elif ci is not None:
        what, taken = "--ci", {"--target", "--force"}
    for flag in given.keys() - taken:
        if given[flag]:
            raise UsageFailure(f"init: {flag} says nothing of {what}", f"drop {flag}")
    if is_listed:
        file = _existing(path) if path else ""
        listing = replace(call, request=replace(call.request, target=file))
        return listing.apart(_list, file, json_file)
    if ci is not None:
        _write_workflow(path or starter.WORKFLOW, ci, target, force=force)
        return 0
    path = path or starter.ADAPTER
    starter.write_adapter(Path(path), family or FAMILIES[0], force=force)
    line = shlex.join(["gradprobe", "check", f"{path}:backward"])
    write_stdout(f"wrote {path}\nnext: {line}\n")
    return 0


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
    """Lists the functions of a file, or what is built in."""
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
