"""Runs a check under NVIDIA's compute-sanitizer in another process, and puts its findings into this report."""

from __future__ import annotations

import linecache
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..model.failures import TargetFailure, UsageFailure, did_you_mean
from ..model.number import plural
from ..processes.executables import Program, gradprobe_command, run_programs

if TYPE_CHECKING:
    from ..model.memory_finding import MemoryFinding
    from ..numerics.evidence import Probed

# The kind of finding that each of its tools looks for.
TOOLS = {"memcheck": "outside", "racecheck": "race", "initcheck": "unwritten", "synccheck": "barrier"}
# That which watches every kernel: it knows of no value that another one wrote.
_OF_ALL = "initcheck"
_MOST = 100
_LINE = re.compile(r"^=========( *)(.*)$")
_AT = re.compile(r"(?:at |access at )([^+\n]*?)(?:\+0x[0-9a-f]+)? in ([^\n]*?):(\d+)(?= \[|$)")
# Lines that are no findings, but about itself or about errors that calls of torch returned.
_TALK = ("COMPUTE-SANITIZER", "ERROR SUMMARY", "RACECHECK SUMMARY", "LEAK SUMMARY", "Target application", "No attach")
_HOST = ("Host Frame", "Saved host", "Device Frame", "#")


def sanitizer_for(tool: str) -> str:
    """The path of compute-sanitizer.

    Raises:
        UsageFailure: there is no such tool, no such program, or no GPU.
    """
    if tool not in TOOLS:
        way_out = did_you_mean(tool, TOOLS, "")
        raise UsageFailure(f"--sanitize must be one of {', '.join(TOOLS)}, got {tool!r}", way_out)
    from ..targets.builtin import has_driver

    if not has_driver():
        raise UsageFailure(
            "--sanitize runs a check under NVIDIA's compute-sanitizer, which needs a GPU, and there is none",
            "without one, CUDA sources run on the CPU, where every access is looked at anyway",
        )
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    for place in [None, *(f"{home}/bin" for home in homes if home)]:
        if path := shutil.which("compute-sanitizer", path=place):
            return path
    raise UsageFailure("--sanitize: there is no compute-sanitizer", "install the CUDA toolkit, or set CUDA_HOME")


def strays_under(program: str, tool: str, words: Sequence[str], kernels: Sequence[str] = ()) -> list[MemoryFinding]:
    """What a tool finds while a check runs again under it, in another process.

    Args:
        words: the command line that repeats the check, without `gradprobe`.
        kernels: the kernels to watch; none for all, which is many times slower, since torch's are among them.

    Raises:
        TargetFailure: the sanitizer itself failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        options = ["--tool", tool, "--log-file", str(log), "--print-limit", str(_MOST), "--report-api-errors", "no"]
        for kernel in kernels if tool != _OF_ALL else ():
            options += ["--kernel-name", f"kernel_substring={kernel.partition('<')[0]}"]
        # With torch's caching allocator, an access beyond one tensor may be inside another allocation.
        environment = os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
        check = Program([program, *options, *gradprobe_command(*words, "--no-isolate")], environment)
        (ran,) = run_programs([check], grouped=False)
        printed = log.read_text(errors="replace") if log.is_file() else ""
    if "SUMMARY" not in printed:
        said = (printed or ran.output).strip().rpartition("\n")[2]
        raise TargetFailure(f"compute-sanitizer could not run the check: {said}", "run it by hand")
    # The kernels of torch itself were compiled without lines.
    return [finding for finding in findings_in(printed, TOOLS[tool]) if tool != _OF_ALL or finding.file]


def with_strays(report: Probed, tool: str, memory: Sequence[MemoryFinding]) -> Probed:
    """The report with what a tool found."""
    first, *others = report.runs
    count = plural(len(memory), "finding") if memory else "nothing"
    runs = (replace(first, memory=(*first.memory, *memory)), *others)
    return replace(report, runs=runs, notes=(*report.notes, f"compute-sanitizer's {tool} found {count}"))


def with_words(failure: TargetFailure, tool: str, memory: Sequence[MemoryFinding]) -> TargetFailure:
    """The failure of a check, with the first finding of a tool, which is often its cause."""
    if not memory:
        return failure
    place = f" ({memory[0].code})" if memory[0].code else ""
    return TargetFailure(f"{failure}; compute-sanitizer's {tool}: {memory[0].sentence}{place}", failure.way_out)


def findings_in(printed: str, kind: str) -> Iterator[MemoryFinding]:
    """Each finding of a log once, with the line of the kernel."""
    from ..model.memory_finding import MemoryFinding

    known = set()
    for lines in _blocks(printed):
        at = next(filter(None, map(_AT.search, lines)), None)
        kernel, file, line = (at[1].partition("(")[0].strip(), at[2], int(at[3])) if at else ("", "", None)
        if (lines[0], file, line) not in known:
            known.add((lines[0], file, line))
            code = linecache.getline(file, line).strip() if line else ""
            sentence = ". ".join(part.rstrip(".") for part in lines)
            yield MemoryFinding(kind, "", sentence, kernel, file, line, code)


def _blocks(printed: str) -> list[list[str]]:
    """The lines of each finding, the first of which is its head, without host frames."""
    blocks = [list[str]()]
    for match in map(_LINE.match, printed.splitlines()):
        indent, words = (len(match[1]), match[2].strip()) if match else (0, "")
        goes_on = indent > 1 or (indent == 1 and words.startswith("and "))
        if blocks[-1] and words and goes_on:
            blocks[-1] += [] if words.startswith(_HOST) else [words]
        else:  # of what is no finding the block stays empty
            head = words.removeprefix("Error: ").removeprefix("Warning: ")
            blocks.append([] if not words or words.startswith(_TALK) else [head])
    return [block for block in blocks if block]
