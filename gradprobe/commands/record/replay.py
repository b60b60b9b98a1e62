"""Replay: runs a command while a function is watched, and checks and shows the sets of inputs that were kept."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from ...inputs.history import make_folder
from ...inputs.saved import layouts_in_words, load
from ...model.case import Case
from ...model.documents import document_of
from ...model.failures import Failure, TargetFailure, UsageFailure, as_failure
from ...model.layout_run import MISMATCH
from ...model.number import plural
from ...model.report import failed_report
from ...processes.executables import run_in_foreground
from ...processes.startup import STARTUP
from ...render.console import first_line
from ...render.notation import CAUTION
from .capture import ENDING, FOLDER, CapturePlan, parted
from .watched_calls import WatchedCalls, read, together

if TYPE_CHECKING:
    from ...numerics.evidence import ProbeResult


@dataclass(frozen=True)
class ProgramResult:
    command: tuple[str, ...]
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
        how = "well" if self.code == 0 else f"with exit code {self.code}"
        return f"the command ended {how}"

    def sentences(self, watch: str) -> list[str]:
        """How the command ended, what was kept, and what was left out."""
        sets = plural(len(self.files), "set")
        return [f"{self.in_words}; {sets} of real inputs of {watch} kept", *self.seen.troubles()]


@dataclass(frozen=True)
class CheckedInputs:
    file: str
    report: ProbeResult | None
    failure: Failure | None
    layouts: str
    """The layouts of its tensors, in words."""

    @property
    def code(self) -> int:
        """The exit code that `check` would give."""
        if self.failure is not None:
            return self.failure.exit_code
        return 1 if self.report is not None and self.report.failing else 0


def run_watched(
    command: Sequence[str], watch: str, how: CapturePlan, *, quiet: bool
) -> ProgramResult:
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
        raise UsageFailure(
            "run: no command", f"for example gradprobe run --watch {watch} -- python3 train.py"
        )
    if shutil.which(command[0]) is None:
        way_out = (
            f"what follows -- is run as it stands; gradprobe itself runs in {sys.executable}"
        )
        raise UsageFailure(f"run: there is no command {command[0]!r}", way_out)
    folder = how.folder
    _clear(folder)
    code = run_in_foreground(command, _environment(watch, how), quiet=quiet)
    found = sorted(folder.glob(f"*{ENDING}"), key=lambda file: file.stat().st_mtime_ns)
    ended = ProgramResult(
        tuple(command), code, tuple(map(str, found[: how.keep])), together(read(folder))
    )
    if found:
        return ended
    why = "it ran no Python that reads PYTHONPATH and runs sitecustomize (with -I, -S and -E it does not)"
    why = ended.seen.why_nothing(watch) if any(folder.glob("seen-*.json")) else why
    ways = [*(ended.seen.troubles() if ended.seen.calls else ()), "nothing was checked"]
    raise TargetFailure(
        f"no inputs of {watch} were kept, and {ended.in_words}: {why}", "; ".join(ways)
    )


def _clear(folder: Path) -> None:
    """Makes the folder, and removes from it only what an earlier run wrote there."""
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
    return {**os.environ, **own, "PYTHONPATH": os.pathsep.join(entry for entry in path if entry)}


def look_where_it_looked(ended: ProgramResult) -> None:
    """Appends the command's search path to this one, so that the module is found where the command found it."""
    sys.path += [entry for entry in ended.seen.path if entry not in sys.path]


def check_inputs(
    files: Sequence[str], check: Callable[[str], ProbeResult]
) -> Iterator[CheckedInputs]:
    """Checks one set after another. One that fails does not stop the others."""
    for file in files:
        try:
            yield CheckedInputs(file, check(file), None, layouts_in_words(load(file)))
        except Exception as error:
            yield CheckedInputs(file, None, as_failure(error), "")


SCHEMA = "gradprobe.runs/1"


def line_of(number: int, checked: CheckedInputs) -> Text:
    """One set in a line: its verdict, what it is, and where it is wrong or why it was not run."""
    # It imports torch, which the process that was typed does without.
    from ...pipeline.reported import report_of

    report = checked.report
    if report is None:
        way_out = checked.failure.way_out if checked.failure else ""
        words = f"  {checked.file}: {checked.failure}" + (f" ({way_out})" if way_out else "")
        return Text.assemble(f"  {number:>2}  ", ("NOT RUN ", CAUTION), words)
    wrong = report.failing
    verdict = ("MISMATCH", "bold red") if wrong else ("MATCH   ", "bold green")
    line = Text.assemble(
        f"  {number:>2}  ", verdict, f"  {_shape(report.case)}; {checked.layouts}"
    )
    if wrong:
        if wrong[1].first:
            place = first_line(report_of(report)).split()[2:7]
        else:
            place = [wrong[1].broken[0].name]
        line.append(f"; first wrong: {' '.join(place)}")
    return line


def as_document(checked: CheckedInputs, repro_command: str) -> dict[str, Any]:
    """The report that `check --json` gives for that set, or what stands in its place."""
    from ...pipeline.reported import report_of

    if checked.failure is not None:
        return document_of(failed_report(checked.failure, repro_command))
    assert checked.report is not None
    return document_of(report_of(checked.report))


def summary_line(verdicts: Sequence[str]) -> Text:
    """What the sets came to together."""
    wrong, failed = verdicts.count(MISMATCH), verdicts.count("error")
    sets = plural(len(verdicts), "real set")
    words = f"{sets} of inputs: {len(verdicts) - wrong - failed} match"
    words += f", {wrong} do not" if wrong else ""
    return Text(words + (f", {failed} could not be checked" if failed else ""), "bold")


def _shape(case: Case) -> str:
    heads, length = str(case.heads), str(case.seqlen_q)
    heads += f"/{case.kv_heads}" if case.kv_heads != case.heads else ""
    length += f"x{case.seqlen_k}" if case.seqlen_k != case.seqlen_q else ""
    words = [f"B {case.batch}, H {heads}, L {length}, D {case.head_dim}", case.dtype]
    words += [name for name in ("causal", "bias", "alibi", "sinks") if getattr(case, name)]
    words += ["mask"] if case.mask else []
    return ", ".join(words)


def captures_as_json(
    ended: ProgramResult, watch: str, reports: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """All of it, ready for `json.dumps`; each report is what `check --inputs` gives for that set."""
    verdicts = [report["verdict"] for report in reports]
    whole = next((word for word in (MISMATCH, "error") if word in verdicts), "match")
    hidden = ("path", "main", "imported", "trouble")
    return {
        "schema": SCHEMA,
        "verdict": whole,
        "watch": watch,
        "command": list(ended.command),
        "command_exit": ended.code,
        "seen": {name: value for name, value in asdict(ended.seen).items() if name not in hidden},
        "captures": list(reports),
    }
