"""PlannedCheck: a check of several. CheckOutcome: what it gave, or what is known where it did not end; exit codes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from msgspec import structs

from ...inputs.history import CheckRequest
from ...inputs.options import command_line
from ...model.assignment import parse_run, planned_runs, run_name
from ...model.case import Case, fewer_heads, shortened
from ...model.documents import Reports
from ...model.failures import Failure, ReferenceFailure, TargetFailure, UsageFailure, as_failure
from ...model.layout_run import CRASHED, FAILED, MATCH, MISMATCH, Error, Run
from ...model.memory_finding import WARNING, MemoryFinding, WarningNote
from ...model.report import CheckedTarget, Report, SecondCheck, error_of
from ...processes import Crash, WorkerException
from ...processes.ended import CRASH, DEVICE, MEMORY, TIMEOUT
from ...render.terminal import interrupted

INTERRUPTED = "Interrupted"
"""The kind of error of a check that Ctrl-C ended."""


@dataclass(frozen=True)
class Counterpart:
    """A check that was made, to set another beside it."""

    name: str
    """The word that named it."""
    report: Report
    kept: str
    """The file of what its target gave; "" where it gave nothing."""


@dataclass(frozen=True)
class PlannedCheck:
    """A check of several."""

    title: str
    """A short name of its case: "gqa", "heads=3 dtype=float16"."""
    request: CheckRequest
    close_up: tuple[str, tuple[int, int] | None] | None = None
    """Where it is one intermediate that is asked for: its name, and the batch and head to show."""
    kept: str = ""
    """The file that what the target gave is written into, for a check that is set beside this one."""
    against: Counterpart | None = None
    chosen: str = ""
    """Why it is of this target, where nobody named one."""
    fresh: bool = False
    """Whether every cache of compiled kernels is to be empty."""
    functions: tuple[Callable[..., Any] | None, Callable[..., Any] | None] = (None, None)
    """What stands in this process for the word of the target, and of the reference."""

    @property
    def layouts(self) -> tuple[str, ...]:
        """The names of the layouts that it is to run in; a run that tells more of one is not counted."""
        options = self.request.options
        if "layout" in options:
            return (" ".join(options["layout"]),)
        request = tuple(parse_run(word) for word in options.get("runs") or ())
        return tuple(map(run_name, planned_runs(request, are_saved="inputs" in options)))

    @property
    def case_line(self) -> str:
        """The target and its case, as far as the words say: before anything is imported that could say more."""
        options = {name: word for name, word in self.request.options.items() if not isinstance(word, list)}
        sizes = {"batch": Case.batch, "heads": Case.heads, "seqlen": Case.seqlen_q, "head_dim": Case.head_dim}
        if {"seqlen_q", "seqlen_k", "cu_seqlens"} & options.keys():
            del sizes["seqlen"]
        known = {} if "inputs" in options else {**sizes, "dtype": Case.dtype}
        return f"{self.request.target}  {' '.join(titled({**known, **options}))}"

    @property
    def repro_command(self) -> str:
        """The command line that repeats it alone; "" where a function has no word."""
        if not self.request.target or self.request.reference == "":
            return ""
        words: dict[str, Any] = {"family": self.request.family, "reference": self.request.reference}
        name, at = self.close_up or ("", None)
        words |= {"at": f"{at[0]},{at[1]}"} if at else {}
        words |= {"against": self.against.name} if self.against else {}
        words |= {"fresh": True} if self.fresh else {}
        return command_line(f"diff {name}" if name else "check", self.request.target, self.request.options, words)


@dataclass(frozen=True)
class CheckOutcome:
    """A check that was made, also one that failed, crashed or took too long."""

    request: CheckRequest
    report: Report
    """With the title of its case."""
    code: int
    """The exit code that it would have alone: 0 match, 1 mismatch, 2 a wrong word, 3 an error."""

    @property
    def title(self) -> str:
        return self.report.title

    @property
    def verdict(self) -> str:
        """match, mismatch or error."""
        return self.report.verdict

    @property
    def is_refused(self) -> bool:
        """Whether the target raised on purpose instead, or there is no room for what it is to be given."""
        error = self.report.error
        return self.verdict == FAILED and error is not None and error.kind in ("Refusal", "NoRoom")

    @property
    def is_interrupted(self) -> bool:
        """Whether Ctrl-C ended it before anything was wrong."""
        error = self.report.error
        return self.verdict == FAILED and error is not None and error.kind == INTERRUPTED

    def numbered(self, number: int) -> CheckOutcome:
        """The same at a place in the plan."""
        return replace(self, report=structs.replace(self.report, number=number))

    def as_warning(self, warned: WarningNote) -> CheckOutcome:
        """The same, of which one sentence is told and which does not count."""
        return replace(self, report=structs.replace(self.report, severity=WARNING, warnings=(warned,)), code=0)


def code_of(codes: Sequence[int]) -> int:
    """The exit code of several: a mismatch anywhere is one; else an error is one, and 2 where only words are wrong."""
    if 1 in codes:
        return 1
    return 3 if 3 in codes else max(codes, default=0)


def code_of_report(report: Report) -> int:
    """The exit code of a check alone, by what it came to."""
    if report.is_warning:
        return 0
    if report.verdict == MATCH and report.against is not None and report.against.report.verdict == FAILED:
        return Failure.exit_code  # it was to be set beside something
    if report.verdict in (MATCH, MISMATCH):
        return int(report.verdict == MISMATCH)
    kind = report.error.kind if report.error else ""
    return UsageFailure.exit_code if kind == UsageFailure.__name__ else Failure.exit_code


def code_of_reports(several: Reports) -> int:
    """That of the command that made them."""
    codes = [code_of_report(report) for report in several.reports]
    # Nothing compared is no match.
    return code_of(codes) if several.counted else Failure.exit_code


@dataclass(frozen=True)
class Stage:
    """What a check is at."""

    words: str
    fraction: float
    layout: str
    """The layout that it is done for; "" where there is none yet."""


@dataclass
class Heard:
    """All that was said of one check, the latest of each."""

    stage: Stage | None = None
    so_far: Report | None = None
    """Of the layouts that were measured."""

    def take(self, value: Stage | Report) -> None:
        if isinstance(value, Stage):
            self.stage = value
        else:
            self.so_far = value


# A multiple of the usual tiles.
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
        options |= {name: shortened(options[name], _SPAN) for name in _LENGTHS if name in options}
        options |= {"batch": min(options["batch"], _FEW)} if "batch" in options else {}
    if "heads" in options and "," not in str(options.get("tau", "")):
        heads, keys = fewer_heads(options["heads"], options.get("kv_heads", options["heads"]), _FEW)
        options |= {"heads": heads} | ({"kv_heads": keys} if "kv_heads" in options else {})
    return replace(request, options=options)


LOST, LATE = "crashed", "took too long"
_DEBUGGED = "check --no-isolate runs it in this process, for a debugger"
_WAYS_OUT = {
    TIMEOUT: "a smaller case may do, or a longer --timeout",
    MEMORY: "a smaller case may do, or a higher --max-memory",
}


def of_error(planned: PlannedCheck, error: BaseException, heard: Heard, seconds: float, stack: str) -> CheckOutcome:
    """A check that an exception ended, also one that asks for the end of its process."""
    failure = as_failure(error)
    if not isinstance(error, Exception):
        where = _where(heard)
        failure = TargetFailure(f"{_subject(planned, heard)} raised {type(error).__name__}{where}", failure.way_out)
    return _ended(planned, structs.replace(error_of(failure), stack=stack), failure.exit_code, heard, seconds)


def of_raised(planned: PlannedCheck, raised: WorkerException, heard: Heard, stack: str) -> CheckOutcome:
    """The same of an exception in another process."""
    left: dict[str, Any] = {"details": raised.details, "way_out": raised.way_out, "stack": stack}
    error = Error(kind=raised.kind, message=raised.message, **left)
    return _ended(planned, error, raised.exit_code, heard, 0.0)


def of_crash(planned: PlannedCheck, crash: Crash, heard: Heard, memory: Sequence[MemoryFinding] = ()) -> CheckOutcome:
    """A check whose process died or was stopped.

    Args:
        memory: what the interpreter's watch sees the kernels do there.
    """
    what = LATE if crash.kind == TIMEOUT else LOST
    subject, where = _subject(planned, heard), _where(heard)
    words = f"{crash.words}{crash.where}" + (f"; small in the interpreter {memory[0].sentence}" if memory else "")
    message, way_out = f"{subject} {what}{where}: {words}", _WAYS_OUT.get(crash.kind, _DEBUGGED)
    left: dict[str, Any] = {"stderr_tail": crash.stderr_tail, "stack": crash.stack, "memory": tuple(memory)}
    left |= asdict(crash.last) if crash.last else {}
    error = Error(kind=crash.kind, message=message, way_out=way_out, words=words, **left)
    return _ended(planned, error, Failure.exit_code, heard, crash.seconds)


def of_interrupt(planned: PlannedCheck, heard: Heard) -> CheckOutcome:
    """A check that Ctrl-C ended, with the layouts that were measured."""
    done = len(heard.so_far.runs) if heard.so_far else 0
    failure = interrupted(done, max(done, len(planned.layouts)), "layouts")
    error = Error(kind=INTERRUPTED, message=str(failure), way_out=failure.way_out)
    return _ended(planned, error, Failure.exit_code, heard, 0.0)


def _subject(planned: PlannedCheck, heard: Heard) -> str:
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


def _ended(planned: PlannedCheck, error: Error, code: int, heard: Heard, seconds: float) -> CheckOutcome:
    """What was measured counts, whatever came after it, unless that says that nobody may judge by it."""
    so_far, request = heard.so_far, planned.request
    ended: dict[str, Any] = {"title": planned.title, "error": error}
    if (other := planned.against) is not None:
        ended |= {"against": SecondCheck(name=other.name, report=other.report)}
    total = {"total": round(seconds, 4)}
    if so_far is None or code != Failure.exit_code or error.kind == ReferenceFailure.__name__:
        # The target and the words of the case that a report would have been about.
        name = request.target or getattr(planned.functions[0], "__name__", "")
        target = CheckedTarget(name=name, family=request.family or "", reference=request.reference or "")
        ended |= {"target": target, "options": dict(request.options), "reproduce": planned.repro_command}
        return CheckOutcome(request, Report(verdict=FAILED, seconds=total, **ended), code)
    runs = (*so_far.runs, run_ended(error, _layout(heard)))
    verdict = FAILED if so_far.failing is None else MISMATCH
    report = structs.replace(so_far, verdict=verdict, runs=runs, seconds={**so_far.seconds, **total}, **ended)
    return CheckOutcome(request, report, 1 if verdict == MISMATCH else code)


def run_ended(error: Error, layout: str) -> Run:
    """The layout that ended a check, as one of its runs."""
    verdict = CRASHED if error.kind in (CRASH, DEVICE, MEMORY) else FAILED
    told = structs.replace(error, way_out="", stderr_tail="", stack="", memory=())
    return Run(layout=layout, verdict=verdict, memory=error.memory, error=told)


_SHORT = {
    "seqlen": "L",
    "seqlen_q": "Lq",
    "seqlen_k": "Lk",
    "head_dim": "D",
    "head_dim_v": "Dv",
    "heads": "H",
    "kv_heads": "Hkv",
    "batch": "B",
}


def titled(options: Mapping[str, Any]) -> list[str]:
    """Options as titles have them: H=1, float16, no-causal."""
    return [_word(name, word) for name, word in options.items()]


def _word(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return name if value else f"no-{name}"
    return str(value) if name in ("dtype", "pattern") else f"{_SHORT.get(name, name.replace('_', '-'))}={value}"
