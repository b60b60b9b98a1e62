"""Checks that came to no end: their reports, and the smaller check that shows in the interpreter what ended one."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from ...inputs.history import CheckRequest
from ...model.failures import Failure, ReferenceFailure, TargetFailure, as_failure
from ...model.memory import MemoryFinding
from ...model.report import CheckedTarget, Report, error_of
from ...model.run import CRASHED, FAILED, MISMATCH, Error, Run
from ...processes import Crash, Raised
from ...processes.ended import CRASH, DEVICE, MEMORY, TIMEOUT
from ...render.terminal import interrupted
from .checked import INTERRUPTED, Checked, Heard, Planned

# A length beyond 2 * _SPAN becomes _SPAN plus its remainder, so that a last tile of usual size is as full as before.
_SPAN = 128
# Batches, and key heads: two show what one hides.
_FEW = 2
_LENGTHS = ("seqlen", "seqlen_q", "seqlen_k")
# Options that fix the length of each sequence.
_OWN_LENGTHS = ("seqlens", "cu_seqlens", "cu_seqlens_k", "inputs")


def for_the_interpreter(request: CheckRequest) -> CheckRequest:
    """The same check on the CPU, only as large as it must be to show the effect of the layout.

    Where an option gives a value for each batch or head, their number stays.
    """
    options = {name: word for name, word in request.options.items() if name != "dots"} | {"device": "cpu"}
    if not any(name in options for name in _OWN_LENGTHS):
        lengths = {name: options[name] for name in _LENGTHS if options.get(name, 0) > 2 * _SPAN}
        options |= {name: _SPAN + length % _SPAN for name, length in lengths.items()}
        options |= {"batch": min(options["batch"], _FEW)} if "batch" in options else {}
    if "," not in str(options.get("tau", "")):
        options |= _heads(options)
    return dataclasses.replace(request, options=options)


def _heads(options: Mapping[str, Any]) -> dict[str, int]:
    """Two key heads, each with as many query heads as before."""
    heads = options.get("heads", 0)
    keys = options.get("kv_heads", heads)
    if keys <= _FEW or heads % keys:
        return {}
    return {"heads": _FEW * heads // keys} | ({"kv_heads": _FEW} if "kv_heads" in options else {})


LOST, LATE = "crashed", "took too long"
_DEBUGGED = "--no-isolate runs it in this process, for a debugger"
_WAYS_OUT = {
    TIMEOUT: "a smaller case may do, or a longer --timeout",
    MEMORY: "a smaller case may do, or a higher --max-memory",
}


def of_error(planned: Planned, error: BaseException, heard: Heard, seconds: float, stack: str) -> Checked:
    """A check that an exception ended, also one that asks for the end of its process."""
    failure = as_failure(error)
    if not isinstance(error, Exception):
        where = _where(heard)
        failure = TargetFailure(f"{_subject(planned, heard)} raised {type(error).__name__}{where}", failure.way_out)
    return _ended(planned, replace(error_of(failure), stack=stack), failure.exit_code, heard, seconds)


def of_raised(planned: Planned, raised: Raised, heard: Heard, stack: str) -> Checked:
    """The same of an exception in another process."""
    error = Error(kind=raised.kind, message=raised.message, way_out=raised.way_out, stack=stack)
    return _ended(planned, error, raised.exit_code, heard, 0.0)


def of_crash(planned: Planned, crash: Crash, heard: Heard, memory: Sequence[MemoryFinding] = ()) -> Checked:
    """A check whose process died or was stopped.

    Args:
        memory: what the interpreter's watch sees the kernels do there.
    """
    what = LATE if crash.kind == TIMEOUT else LOST
    subject, where = _subject(planned, heard), _where(heard)
    words = f"{crash.words}{crash.where}" + (f"; small in the interpreter {memory[0].sentence}" if memory else "")
    message, way_out = f"{subject} {what}{where}: {words}", _WAYS_OUT.get(crash.kind, _DEBUGGED)
    left: dict[str, Any] = {"stderr_tail": crash.stderr_tail, "stack": crash.stack, "memory": tuple(memory)}
    left |= dataclasses.asdict(crash.last) if crash.last else {}
    error = Error(kind=crash.kind, message=message, way_out=way_out, words=words, **left)
    return _ended(planned, error, Failure.exit_code, heard, crash.seconds)


def of_interrupt(planned: Planned, heard: Heard) -> Checked:
    """A check that Ctrl-C ended, with the layouts that were measured."""
    done = len(heard.so_far.runs) if heard.so_far else 0
    failure = interrupted(done, max(done, len(planned.layouts)), "layouts")
    error = Error(kind=INTERRUPTED, message=str(failure), way_out=failure.way_out)
    return _ended(planned, error, Failure.exit_code, heard, 0.0)


def _subject(planned: Planned, heard: Heard) -> str:
    if heard.stage is not None and heard.stage.words.startswith("reference "):
        return f"reference {planned.request.reference!r}"
    return f"target {planned.request.target!r}"


def _layout(heard: Heard) -> str:
    """What was run when it ended, as no run that is measured is called; "" before the first."""
    if heard.stage is None or not heard.stage.layout:
        return ""
    measured = {run.layout for run in heard.so_far.runs} if heard.so_far else set()
    return f"{heard.stage.layout}, once more" if heard.stage.layout in measured else heard.stage.layout


def _where(heard: Heard) -> str:
    return f" ({layout})" if (layout := _layout(heard)) else ""


def _ended(planned: Planned, error: Error, code: int, heard: Heard, seconds: float) -> Checked:
    """What was measured counts, whatever came after it, unless that says that nobody may judge by it."""
    so_far, request = heard.so_far, planned.request
    ended: dict[str, Any] = {"title": planned.title, "error": error}
    total = {"total": round(seconds, 4)}
    if so_far is None or code != Failure.exit_code or error.kind == ReferenceFailure.__name__:
        # The target and the words of the case that a report would have been about.
        target = CheckedTarget(name=request.target, family=request.family or "", reference=request.reference or "")
        ended |= {"target": target, "options": dict(request.options), "reproduce": planned.repro_command}
        return Checked(request, Report(verdict=FAILED, seconds=total, **ended), code)
    runs = (*so_far.runs, run_ended(error, _layout(heard)))
    verdict = FAILED if so_far.failing is None else MISMATCH
    report = replace(so_far, verdict=verdict, runs=runs, seconds={**so_far.seconds, **total}, **ended)
    return Checked(request, report, 1 if verdict == MISMATCH else code)


def run_ended(error: Error, layout: str) -> Run:
    """The layout that ended a check, as one of its runs."""
    verdict = CRASHED if error.kind in (CRASH, DEVICE, MEMORY) else FAILED
    told = replace(error, way_out="", stderr_tail="", stack="", memory=())
    return Run(layout=layout, verdict=verdict, memory=error.memory, error=told)
