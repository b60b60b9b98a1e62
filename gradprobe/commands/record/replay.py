"""Runs a command while a function is watched, and plans a check of each set of inputs that was kept."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...inputs import history
from ...inputs.history import CheckRequest
from ...model.failures import TargetFailure, UsageFailure
from ...model.number import plural
from ...processes.executables import STARTUP
from ..suite.plan import Plan, PlannedCheck
from .watched_calls import ENDING, CapturePlan, WatchedCalls

_ORDERS = ("bhld", "blhd")


@dataclass(frozen=True)
class ProgramResult:
    how: str
    files: tuple[str, ...]
    seen: WatchedCalls

    def sentences(self, watch: str) -> list[str]:
        sets = plural(len(self.files), "set")
        return [f"{self.how}; {sets} of real inputs of {watch} kept", *self.seen.sentences()]


def capture_plan(watch: str, keep: int, order: str) -> CapturePlan:
    """Raises UsageFailure where a word has another form."""
    place, colon, name = watch.partition(":")
    if not colon or not all(part.isidentifier() for part in (name, *place.split("."))):
        way_out = "for example --watch model.attention:attention; a method or a nested function cannot be watched"
        raise UsageFailure(f"--watch takes MODULE:FUNCTION, got {watch!r}", way_out)
    if keep < 1:
        raise UsageFailure(f"--keep must be at least 1, got {keep}")
    if order not in _ORDERS:
        raise UsageFailure(f"--order must be one of {', '.join(_ORDERS)}, got {order!r}")
    return CapturePlan(history.FOLDER / "captures" / f"{place}.{name}", keep, order)


def run_watched(
    command: Sequence[str], watch: str, how: CapturePlan, *, quiet: bool
) -> ProgramResult:
    """Runs a command and watches a function in every Python process that it starts.

    The sets of an earlier run are removed. Afterwards modules are found where the command found them.

    Args:
        quiet: the command's stdout goes to stderr.

    Raises:
        UsageFailure: there is no such command, or the folder cannot be written.
        TargetFailure: nothing was kept.
    """
    if not command or shutil.which(command[0]) is None:
        what = f"there is no command {command[0]!r}" if command else "no command"
        example = f"for example gradprobe run --watch {watch} -- python3 train.py"
        raise UsageFailure(f"run: {what}", example)
    try:
        history.make_folder()
        how.folder.mkdir(parents=True, exist_ok=True)
        for old in (*how.folder.glob(f"*{ENDING}"), *how.folder.glob("seen-*.json")):
            old.unlink()
    except OSError as error:
        raise UsageFailure(f"{how.folder}: cannot be written, {error.strerror}") from error
    path = filter(None, (str(STARTUP), os.environ.get("PYTHONPATH", "")))
    asked = json.dumps([watch, str(how.folder.resolve()), how.keep, how.order])
    own = {"GRADPROBE_WATCH": asked, "GRADPROBE_ENTRY": f"{__package__}.import_hook:enter"}
    environment = os.environ | own | {"PYTHONPATH": os.pathsep.join(path)}
    process = subprocess.Popen([*command], env=environment, stdout=2 if quiet else None)
    with contextlib.suppress(KeyboardInterrupt):  # the first Ctrl-C belongs to the command
        process.wait()
    code = process.wait()
    seen, reports = WatchedCalls(), sorted(how.folder.glob("seen-*.json"))
    for file in reports:
        seen |= WatchedCalls(**json.loads(file.read_text()))
    found = sorted(how.folder.glob(f"*{ENDING}"), key=lambda file: file.stat().st_mtime_ns)
    if found:
        sys.path += [entry for entry in seen.path if entry not in sys.path]
        return ProgramResult(_in_words(code), tuple(map(str, found[: how.keep])), seen)
    why = "it ran no Python that reads PYTHONPATH and runs sitecustomize (with -I, -S and -E it does not)"
    why = seen.why_nothing(watch) if reports else why
    words = f"no inputs of {watch} were kept, and {_in_words(code)}: {why}"
    raise TargetFailure(words, "nothing was checked")


def _in_words(code: int) -> str:
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"the command was ended by {signal.Signals(-code).name}"
    return f"the command ended {f'with exit code {code}' if code else 'well'}"


def replay_plan(ended: ProgramResult, request: CheckRequest) -> Plan:
    """A check of each set that was kept, as its tensors lay in memory unless layouts are asked for."""
    saved = {} if "runs" in request.options else {"layout": ["all=as-saved"]}
    checks = []
    for file in ended.files:
        options = {**saved, **request.options, "inputs": file}
        title = ended.seen.kept.get(os.path.basename(file), file)
        checks.append(PlannedCheck(title, replace(request, options=options)))
    return Plan(checks)
