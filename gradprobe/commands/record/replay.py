"""Runs a command while a function is watched, and plans a check of each set of inputs that was kept."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...inputs.history import CheckRequest, make_folder
from ...model.failures import TargetFailure, UsageFailure
from ...model.number import plural
from ...processes.executables import STARTUP
from ..suite.plan import Plan, PlannedCheck
from .capture import ENDING, FOLDER, CapturePlan, parted
from .watched_calls import WatchedCalls, calls_seen


@dataclass(frozen=True)
class ProgramResult:
    code: int
    """As Popen gives it: negative for a signal."""
    files: tuple[str, ...]
    """The sets that were kept, in the order of their calls."""
    seen: WatchedCalls

    @property
    def in_words(self) -> str:
        if self.code < 0:
            with contextlib.suppress(ValueError):
                return f"the command was ended by {signal.Signals(-self.code).name}"
        return f"the command ended {f'with exit code {self.code}' if self.code else 'well'}"

    def sentences(self, watch: str) -> list[str]:
        sets = plural(len(self.files), "set")
        return [f"{self.in_words}; {sets} of real inputs of {watch} kept", *self.seen.troubles()]


def run_watched(
    command: Sequence[str], watch: str, how: CapturePlan, *, quiet: bool
) -> ProgramResult:
    """Runs a command and watches a function in every Python process that it starts.

    The sets of an earlier run are removed. Afterwards modules are found where the command found them.

    Args:
        quiet: the command's stdout goes to stderr.

    Raises:
        UsageFailure: the arguments are wrong, or there is no such command.
        TargetFailure: nothing was kept. The message says what was seen instead.
    """
    parted(watch)
    if not command:
        example = f"for example gradprobe run --watch {watch} -- python3 train.py"
        raise UsageFailure("run: no command", example)
    if shutil.which(command[0]) is None:
        itself = f"gradprobe itself runs in {sys.executable}"
        way_out = f"what follows -- is run as it stands; {itself}"
        raise UsageFailure(f"run: there is no command {command[0]!r}", way_out)
    _clear(how)
    stdout = 2 if quiet else None
    process = subprocess.Popen([*command], env=_environment(watch, how), stdout=stdout)
    try:
        code = process.wait()
    except KeyboardInterrupt:  # the first Ctrl-C belongs to the command
        code = process.wait()
    found = sorted(how.folder.glob(f"*{ENDING}"), key=lambda file: file.stat().st_mtime_ns)
    files, seen = tuple(map(str, found[: how.keep])), calls_seen(how.folder)
    ended = ProgramResult(code, files, seen or WatchedCalls())
    if found:
        sys.path += [entry for entry in ended.seen.path if entry not in sys.path]
        return ended
    why = "it ran no Python that reads PYTHONPATH and runs sitecustomize (with -I, -S and -E it does not)"
    why = seen.why_nothing(watch) if seen else why
    ways = [*(ended.seen.troubles() if ended.seen.calls else ()), "nothing was checked"]
    words = f"no inputs of {watch} were kept, and {ended.in_words}: {why}"
    raise TargetFailure(words, "; ".join(ways))


def _clear(how: CapturePlan) -> None:
    folder = how.folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if folder.is_relative_to(FOLDER):
            make_folder()
        for old in (*folder.glob(f"*{ENDING}"), *folder.glob("seen-*.json")):
            old.unlink()
    except OSError as error:
        raise UsageFailure(f"{folder}: cannot be written, {error.strerror}") from error


def _environment(watch: str, how: CapturePlan) -> dict[str, str]:
    path = [str(STARTUP), os.environ.get("PYTHONPATH", "")]
    own = {"GRADPROBE_ENTRY": f"{__package__}.import_hook:enter"}
    own |= {"GRADPROBE_WATCH": watch, "GRADPROBE_FOLDER": str(how.folder.resolve())}
    own |= {"GRADPROBE_KEEP": str(how.keep), "GRADPROBE_ORDER": how.order}
    return {**os.environ, **own, "PYTHONPATH": os.pathsep.join(filter(None, path))}


def replay_plan(ended: ProgramResult, request: CheckRequest) -> Plan:
    """A check of each set that was kept, as its tensors lay in memory unless layouts are asked for."""
    saved = {} if "runs" in request.options else {"layout": ["all=as-saved"]}
    checks = []
    for file in ended.files:
        options = {**saved, **request.options, "inputs": file}
        title = ended.seen.kept.get(os.path.basename(file), file)
        checks.append(PlannedCheck(title, replace(request, options=options)))
    return Plan(checks)
