"""COMP: right with another number of pipeline stages, or in the interpreter; or right in another copy of the file."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shlex
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..inputs.options import with_others
from ..model.assignment import run_name
from ..model.failures import Failure
from ..model.mechanisms import door
from ..model.report import Diagnosis, Where
from ..numerics.compare import compare
from ..numerics.precision import precision_of
from ..probing.dots import coarser_dots, dots_in_words, dots_of
from ..processes.executables import Program, gradprobe_command, run_programs
from ..runtime.arithmetic import coarsest
from ..runtime.launches import kernel_types
from ..targets.find import find_target
from .behaviour import Again, first_moved
from .lines import among, line_of

# The last resort for a check of one layout, which takes a few on a quiet machine.
_SECONDS = 600


@door("behaviour/multiplies_coarser")
def multiplies_coarser(again: Again) -> Diagnosis | None:
    """What came is within the budget of the dots that were read in its compiled code, and finer ones were asked for."""
    coarser, case, measured = coarser_dots(again.experiment), again.experiment.case, again.seen.measured
    if not coarser:
        return None
    way, recovery = coarsest(coarser), measured.comparison.recovery
    held = precision_of(case.dtype, way)
    if not compare(case, measured.x, measured.trace, held, recovery=recovery, blame=False).matches:
        return None
    declared = dots_of(again.experiment)
    return Diagnosis(
        f"precision/{way}",
        "PREC",
        f"the dots multiply in {way}, and the check expects {declared}",
        1.0,
        (f"compiled: {dots_in_words(coarser)}", f"every result is within the budget of {way} dots"),
        tuple(
            among(Where(one.file, line, line_of(one.file, line).strip(), kernel=one.by))
            for one in coarser
            for line in one.lines
        ),
        f'tl.dot(..., input_precision="{declared}"), whose default is "tf32"; or check with --dots {way}',
    )


@door("behaviour/right_without_pipelining")
def right_without_pipelining(again: Again) -> Diagnosis | None:
    """Compiled Triton kernels are right with one pipeline stage."""
    if not again.experiment.is_compiled:
        return None
    results = again.run(instrumentation=_one_stage)
    if results is None or not again.is_right(results):
        return None
    name = first_moved(again.moved(again.actual, results))
    return Diagnosis(
        f"compiler/{name}",
        "COMP",
        f"{name} is right with num_stages=1 and wrong as it is compiled",
        again.right(results),
        ("the same kernels, launched with num_stages=1, give right results",),
        fix="launch with num_stages=1, or look for a load that a store of the same loop overtakes",
    )


@door("behaviour/right_in_the_interpreter")
def right_in_the_interpreter(again: Again) -> Diagnosis | None:
    """The same case in the same layout is right in Triton's interpreter, in a process of its own."""
    if not again.experiment.command or not again.experiment.is_compiled:
        return None
    environment = os.environ | {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": "", "GRADPROBE_FIX_BUDGET": "0"}
    layout = {"runs": [run_name(again.assigned)], "device": "cpu", "recover": False}
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = with_others(again.experiment.command, ("layout", "runs", "device"), {**layout, "json": report})
        words = gradprobe_command(*shlex.split(command)[1:])
        try:
            list(run_programs([Program(words, environment)], timeout=_SECONDS, grouped=False))
            verdict = json.loads(report.read_text())["verdict"]
        except (Failure, OSError, ValueError, KeyError):
            return None
    if verdict != "match":
        return None
    name = again.seen.own[0]
    same = (
        f"the same case in {run_name(again.assigned)} matches with --device cpu: no formula, mask or address is wrong"
    )
    left = "only compiled code can do it: the order of programs and threads, pipelining, the compiler"
    return Diagnosis(
        f"compiler/{name}",
        "COMP",
        f"{name} is right in Triton's interpreter and wrong compiled",
        1.0,
        (same, left),
        fix="clear Triton's cache; then compare num_stages and num_warps",
    )


@contextlib.contextmanager
def _one_stage() -> Iterator[None]:
    """While open, every Triton kernel is launched with one pipeline stage."""
    kind = next((kind for kind in kernel_types() if kind.__name__ == "JITFunction"), None)
    if kind is None:
        yield
        return
    original = kind.run

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        return original(self, *args, **kwargs | {"num_stages": 1})

    kind.run = run
    try:
        yield
    finally:
        kind.run = original


@door("behaviour/right_in_another_file")
def right_in_another_file(again: Again) -> Diagnosis | None:
    """Another file of the same module name is right; the one that ran is perhaps an older copy."""
    source = again.experiment.target.source
    for file in source.shadows:
        if hashlib.sha256(Path(file).read_bytes()).hexdigest() == source.sha256:  # what it calls is what differs
            continue
        try:
            other = find_target(f"{file}:{source.name}", again.experiment.case.family)
        except Failure:
            continue
        results = again.run(target=other)
        if results is not None and again.is_right(results):
            return Diagnosis(
                "cache/other-file",
                "COMP",
                f"another file of this name is right, but did not run: {file}",
                1.0,
                (f"ran: {source.file} sha256 {source.sha256[:12]}", f"right: {file}"),
                fix=f"remove one of the two, or put {Path(file).parent} first on the search path",
            )
    return None
