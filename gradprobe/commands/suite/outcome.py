"""What a check gave, or is known of one that did not end; exit codes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from msgspec import structs

from ...inputs.history import CheckRequest
from ...model import failures
from ...model.documents import Reports
from ...model.failures import Failure, ReferenceFailure, TargetFailure, UsageFailure, as_failure
from ...model.layout_run import CRASHED, FAILED, MATCH, MISMATCH, Error, Run
from ...model.memory_finding import WARNING, MemoryFinding, WarningNote
from ...model.report import CheckedTarget, Report, SecondCheck, error_of
from ...processes import Crash
from ...processes.ended import CRASH, DEVICE, MEMORY, TIMEOUT
from ...render.terminal import interrupted
from .plan import PlannedCheck

INTERRUPTED = "Interrupted"


@dataclass(frozen=True)
class CheckOutcome:
    request: CheckRequest
    report: Report

    @property
    def code(self) -> int:
        return code_of_report(self.report)

    @property
    def title(self) -> str:
        return self.report.title

    @property
    def verdict(self) -> str:
        return self.report.verdict

    @property
    def error_kind(self) -> str:
        return self.report.error.kind if self.report.error else ""

    @property
    def is_refused(self) -> bool:
        """The target raised on purpose, or there is no room for its tensors."""
        return self.verdict == FAILED and self.error_kind in ("Refusal", "NoRoom")

    def with_report(self, **parts: Any) -> CheckOutcome:
        """`number` is its place in the plan."""
        return replace(self, report=structs.replace(self.report, **parts))

    def as_warning(self, kind: str, words: str, layouts: tuple[str, ...] = ()) -> CheckOutcome:
        """It does not count."""
        warned = (WarningNote(kind, self.title, words, layouts),)
        return self.with_report(severity=WARNING, warnings=warned)


def failure_of(error: Error) -> Failure:
    kind: type[Failure] = getattr(failures, error.kind, Failure)
    return kind(error.message, error.way_out, (*error.details, *error.stack.splitlines()))


def code_of(codes: Sequence[int]) -> int:
    """A mismatch anywhere is 1; else an error is 3, and 2 where only words are wrong."""
    return 1 if 1 in codes else 3 if 3 in codes else max(codes, default=0)


def code_of_report(report: Report) -> int:
    """0 match, 1 mismatch, 2 a wrong word, 3 an error."""
    if report.is_warning:
        return 0
    if report.verdict == MISMATCH:
        return 1
    if report.verdict == MATCH:
        other = report.against  # what it was to be set beside
        is_alone = other is not None and other.report.verdict == FAILED
        return Failure.exit_code if is_alone else 0
    kind = report.error.kind if report.error else ""
    return UsageFailure.exit_code if kind == UsageFailure.__name__ else Failure.exit_code


def code_of_reports(several: Reports) -> int:
    """Nothing compared is no match."""
    codes = list(map(code_of_report, several.reports))
    return code_of(codes) if several.counted else Failure.exit_code


@dataclass(frozen=True)
class Stage:
    words: str
    fraction: float
    layout: str


@dataclass
class CheckMessages:
    stage: Stage | None = None
    so_far: Report | None = None

    def take(self, value: Stage | Report) -> None:
        if isinstance(value, Stage):
            self.stage = value
        else:
            self.so_far = value

    @property
    def layout(self) -> str:
        """Of the last run, as no measured one is called; "" before the first."""
        layout = self.stage.layout if self.stage else ""
        measured = [run.layout for run in self.so_far.runs] if self.so_far else []
        return f"{layout}, once more" if layout in measured else layout

    def sentence(self, planned: PlannedCheck, what: str) -> str:
        """ "target 'f' crashed (distinct)"."""
        subject = f"target {planned.request.target!r}"
        if self.stage is not None and self.stage.words.startswith("reference "):
            subject = f"reference {planned.request.reference!r}"
        return f"{subject} {what}" + (f" ({self.layout})" if self.layout else "")


LOST, LATE = "crashed", "took too long"
_DEBUGGED = "check --no-isolate runs it in this process, for a debugger"
_WAYS_OUT = {
    TIMEOUT: "a smaller case may do, or a longer --timeout",
    MEMORY: "a smaller case may do, or a higher --max-memory",
}


def of_error(
    planned: PlannedCheck, error: BaseException, heard: CheckMessages, seconds: float, stack: str
) -> CheckOutcome:
    """Also of one that asks for the end of its process."""
    failure = as_failure(error)
    if not isinstance(error, Exception):
        words = heard.sentence(planned, f"raised {type(error).__name__}")
        failure = TargetFailure(words, failure.way_out)
    return _ended(planned, structs.replace(error_of(failure), stack=stack), heard, seconds)


def of_crash(
    planned: PlannedCheck,
    crash: Crash,
    heard: CheckMessages,
    memory: Sequence[MemoryFinding] = (),
) -> CheckOutcome:
    """`memory` is what its kernels do there in a small case interpreted."""
    words = f"{crash.words}{crash.where}"
    if memory:
        words += f"; small in the interpreter {memory[0].sentence}"
    what = heard.sentence(planned, LATE if crash.kind == TIMEOUT else LOST)
    error = Error(
        kind=crash.kind,
        message=f"{what}: {words}",
        way_out=_WAYS_OUT.get(crash.kind, _DEBUGGED),
        words=words,
        stderr_tail=crash.stderr_tail,
        stack=crash.stack,
        memory=tuple(memory),
        **(asdict(crash.last) if crash.last else {}),
    )
    return _ended(planned, error, heard, crash.seconds)


def of_interrupt(planned: PlannedCheck, heard: CheckMessages) -> CheckOutcome:
    done = len(heard.so_far.runs) if heard.so_far else 0
    failure = interrupted(done, max(done, len(planned.layouts)), "layouts")
    error = structs.replace(error_of(failure), kind=INTERRUPTED)
    return _ended(planned, error, heard, 0.0)


def _ended(
    planned: PlannedCheck, error: Error, heard: CheckMessages, seconds: float
) -> CheckOutcome:
    """What was measured counts, unless the error says that nobody may judge by it."""
    so_far, request = heard.so_far, planned.request
    ended: dict[str, Any] = {"title": planned.title, "error": error}
    if (other := planned.against) is not None:
        ended["against"] = SecondCheck(name=other.name, report=other.report)
    total = {"total": round(seconds, 4)}
    if so_far is None or error.kind in (UsageFailure.__name__, ReferenceFailure.__name__):
        # The target and the words of the case that a report would have been about.
        name = request.target or getattr(planned.functions[0], "__name__", "")
        family, reference = request.family or "", request.reference or ""
        target = CheckedTarget(name=name, family=family, reference=reference)
        ended |= {"options": dict(request.options), "reproduce": planned.repro_command}
        ended |= {"seconds": total, "target": target}
        return CheckOutcome(request, Report(verdict=FAILED, **ended))
    verdict = CRASHED if error.kind in (CRASH, DEVICE, MEMORY) else FAILED
    short = structs.replace(error, way_out="", stderr_tail="", stack="", memory=())
    last = Run(layout=heard.layout, verdict=verdict, memory=error.memory, error=short)
    ended |= {"runs": (*so_far.runs, last), "seconds": {**so_far.seconds, **total}}
    verdict = FAILED if so_far.failing is None else MISMATCH
    return CheckOutcome(request, structs.replace(so_far, verdict=verdict, **ended))
