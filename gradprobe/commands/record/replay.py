"""Runs a command while a function is watched, and checks and shows the sets of inputs that were kept."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.text import Text

from ...inputs.history import CheckRequest, make_folder
from ...inputs.saved import layouts_in_words, load
from ...model.case import Case
from ...model.documents import document_of
from ...model.failures import TargetFailure, UsageFailure, as_failure
from ...model.layout_run import FAILED, MATCH, MISMATCH
from ...model.number import plural
from ...model.report import Report, failed_report
from ...pipeline.run_check import run_check
from ...processes.executables import run_in_foreground
from ...processes.startup import STARTUP
from ...render.console import first_line
from ...render.notation import CAUTION
from .capture import ENDING, FOLDER, CapturePlan, parted
from .watched_calls import WatchedCalls, calls_seen


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
        return f"the command ended {f'with exit code {self.code}' if self.code else 'well'}"

    def sentences(self, watch: str) -> list[str]:
        sets = plural(len(self.files), "set")
        return [f"{self.in_words}; {sets} of real inputs of {watch} kept", *self.seen.troubles()]


def run_watched(
    command: Sequence[str], watch: str, how: CapturePlan, *, quiet: bool
) -> ProgramResult:
    """Runs a command and watches a function in every Python process that it starts.

    Afterwards modules are found where the command found them.

    Args:
        how: its folder is cleared of the sets of an earlier run.
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
    code = run_in_foreground(command, _environment(watch, how), quiet=quiet)
    found = sorted(how.folder.glob(f"*{ENDING}"), key=lambda file: file.stat().st_mtime_ns)
    files, seen = tuple(map(str, found[: how.keep])), calls_seen(how.folder)
    ended = ProgramResult(tuple(command), code, files, seen or WatchedCalls())
    if found:
        sys.path += [entry for entry in ended.seen.path if entry not in sys.path]
        return ended
    why = "it ran no Python that reads PYTHONPATH and runs sitecustomize (with -I, -S and -E it does not)"
    why = seen.why_nothing(watch) if seen else why
    ways = [*(ended.seen.troubles() if ended.seen.calls else ()), "nothing was checked"]
    words = f"no inputs of {watch} were kept, and {ended.in_words}: {why}"
    raise TargetFailure(words, "; ".join(ways))


def _clear(how: CapturePlan) -> None:
    """Makes the folder, and removes from it only what an earlier run wrote there."""
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


def check_inputs(requests: Mapping[str, CheckRequest]) -> Iterator[tuple[str, Report, str]]:
    """Of each file the report that `check --inputs` gives, and its layouts in words. A failure stops no other."""
    from ...pipeline.reported import report_of  # it imports torch

    for file, request in requests.items():
        command = request.command()
        try:
            yield file, report_of(run_check(request, command)), layouts_in_words(load(file))
        except Exception as error:
            yield file, failed_report(as_failure(error), command), ""


def line_of(number: int, file: str, report: Report, layouts: str) -> Text:
    """One set in a line: its verdict, what it is, and where it is wrong or why it was not run."""
    if (error := report.error) is not None:
        words = f"{file}: {error.message}" + (f" ({error.way_out})" if error.way_out else "")
        return Text.assemble(f"  {number:>2}  ", ("NOT RUN ", CAUTION), f"  {words}")
    assert report.case is not None
    wrong = report.failing
    verdict = ("MISMATCH", "bold red") if wrong else ("MATCH   ", "bold green")
    line = Text.assemble(f"  {number:>2}  ", verdict, f"  {_shape(report.case)}; {layouts}")
    if wrong:
        place = first_line(report).split()[2:7]
        line.append(f"; first wrong: {' '.join(place)}")
    return line


def summary_line(verdicts: Sequence[str]) -> Text:
    sets, counts = plural(len(verdicts), "real set"), {MATCH: "match", MISMATCH: "do not"}
    counts[FAILED] = "could not be checked"
    told = [f"{verdicts.count(one)} {words}" for one, words in counts.items() if one in verdicts]
    return Text(f"{sets} of inputs: {', '.join(told)}", "bold")


def _shape(case: Case) -> str:
    heads, length = str(case.heads), str(case.seqlen_q)
    heads += f"/{case.kv_heads}" if case.kv_heads != case.heads else ""
    length += f"x{case.seqlen_k}" if case.seqlen_k != case.seqlen_q else ""
    words = [f"B {case.batch}, H {heads}, L {length}, D {case.head_dim}", case.dtype]
    words += [name for name in ("causal", "bias", "alibi", "sinks") if getattr(case, name)]
    return ", ".join([*words, *(["mask"] if case.mask else [])])


def captures_as_json(
    ended: ProgramResult, watch: str, reports: Sequence[Report]
) -> dict[str, Any]:
    """All of it, ready for `json.dumps`; each report is what `check --inputs` gives for that set."""
    verdicts = [report.verdict for report in reports]
    hidden = ("path", "main", "imported", "trouble")
    return {
        "schema": "gradprobe.runs/1",
        "verdict": next((word for word in (MISMATCH, FAILED) if word in verdicts), MATCH),
        "watch": watch,
        "command": list(ended.command),
        "command_exit": ended.code,
        "seen": {name: value for name, value in asdict(ended.seen).items() if name not in hidden},
        "captures": list(map(document_of, reports)),
    }
