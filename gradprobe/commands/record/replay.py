"""Replay: runs a command while a function is watched, and checks the sets of inputs that were kept."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...inputs.saved import layouts_in_words, load
from ...model.failures import Failure, TargetFailure, UsageFailure, as_failure
from ...model.spans import plural
from ...processes.process import run_in_foreground
from . import call as seen
from .call import Seen
from .capturing import parted
from .watch import ENDING, Keeping

if TYPE_CHECKING:
    from ...numerics.evidence import Probed

FOLDER = Path(".gradprobe") / "captures"


@dataclass(frozen=True)
class ProgramResult:
    """A command that has run."""

    command: tuple[str, ...]
    code: int
    """As Popen gives it: negative for a signal."""
    files: tuple[str, ...]
    """The sets that were kept, in the order of their calls."""
    seen: Seen

    @property
    def in_words(self) -> str:
        """How the command ended."""
        if self.code < 0:
            with contextlib.suppress(ValueError):
                return f"the command was ended by {signal.Signals(-self.code).name}"
        return "the command ended well" if self.code == 0 else f"the command ended with exit code {self.code}"

    def sentences(self, watch: str) -> list[str]:
        """How the command ended, what was kept, and what was left out."""
        sets = plural(len(self.files), "set")
        return [f"{self.in_words}; {sets} of real inputs of {watch} kept", *self.seen.troubles()]


@dataclass(frozen=True)
class Checked:
    """One set of inputs, checked."""

    file: str
    report: Probed | None
    failure: Failure | None
    """Why there is no report."""
    layouts: str
    """The layouts of its tensors, in words."""

    @property
    def code(self) -> int:
        """The exit code that `check` would give."""
        if self.failure is not None:
            return self.failure.exit_code
        return 1 if self.report is not None and self.report.failing else 0


def run_watched(command: Sequence[str], watch: str, how: Keeping, *, quiet: bool) -> ProgramResult:
    """Runs a command and watches a function in every Python process that it starts.

    Args:
        how: its folder is cleared of the sets of an earlier run.
        quiet: the command's stdout goes to stderr.

    Raises:
        UsageFailure: the arguments are wrong, or there is no such command.
        TargetFailure: nothing was kept. The message says what was seen instead.
    """
    parted(watch)
    if not command:
        raise UsageFailure("run: no command", f"for example gradprobe run --watch {watch} -- python train.py")
    if shutil.which(command[0]) is None:
        raise UsageFailure(f"run: there is no command {command[0]!r}", "what follows -- is run as it stands")
    folder = how.folder
    _clear(folder)
    code = run_in_foreground(command, _environment(watch, how), quiet=quiet)
    found = sorted(folder.glob(f"*{ENDING}"), key=lambda file: file.stat().st_mtime_ns)
    ended = ProgramResult(tuple(command), code, tuple(map(str, found[: how.keep])), seen.together(seen.read(folder)))
    if not found:
        raise _nothing(ended, watch, seen.read(folder))
    return ended


def _nothing(ended: ProgramResult, watch: str, found: list[Seen]) -> Failure:
    why = "it ran no Python that reads PYTHONPATH and runs sitecustomize (python -I, -S and -E do not)"
    why = ended.seen.why_nothing(watch) if found else why
    ways = [*ended.seen.troubles(), "nothing was checked"] if ended.seen.calls else ["nothing was checked"]
    return TargetFailure(f"no inputs of {watch} were kept, and {ended.in_words}: {why}", "; ".join(ways))


def _clear(folder: Path) -> None:
    """Makes the folder, and removes from it only what an earlier run wrote there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if folder.is_relative_to(FOLDER):
            (FOLDER.parent / ".gitignore").write_text("*\n")
        for old in (*folder.glob(f"*{ENDING}"), *folder.glob("seen-*.json")):
            old.unlink()
    except OSError as error:
        raise UsageFailure(f"--folder {folder}: cannot be written, {error.strerror}") from error


def _environment(watch: str, how: Keeping) -> dict[str, str]:
    path = [str(Path(__file__).resolve().parent / "child"), os.environ.get("PYTHONPATH", "")]
    own = {"GRADPROBE_WATCH": watch, "GRADPROBE_FOLDER": str(how.folder.resolve())}
    own |= {"GRADPROBE_KEEP": str(how.keep), "GRADPROBE_ORDER": how.order}
    return {**os.environ, **own, "PYTHONPATH": os.pathsep.join(entry for entry in path if entry)}


def look_where_it_looked(ended: ProgramResult) -> None:
    """Appends the command's search path to this one, so that the module is found where the command found it."""
    sys.path += [entry for entry in ended.seen.path if entry not in sys.path]


def check_each(files: Sequence[str], check: Callable[[str], Probed]) -> Iterator[Checked]:
    """Checks one set after another. One that fails does not stop the others."""
    for file in files:
        try:
            yield Checked(file, check(file), None, layouts_in_words(load(file)))
        except Exception as error:
            yield Checked(file, None, as_failure(error), "")


def exit_code(codes: Sequence[int]) -> int:
    """1 where any set mismatched, else the code of a failure, else 0."""
    return 1 if 1 in codes else max(codes, default=0)
