"""Planned: a check of several. Checked: the same, made, with what it said before it ended. Their exit code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from msgspec import structs

from ...inputs.history import CheckRequest
from ...inputs.options import command_line
from ...model.assignment import parse_run, planned_runs, run_name
from ...model.failures import Failure, UsageFailure
from ...model.memory import WARNING, Warned
from ...model.report import Report
from ...model.run import FAILED, MATCH, MISMATCH

INTERRUPTED = "Interrupted"
"""The kind of error of a check that Ctrl-C ended."""


@dataclass(frozen=True)
class Planned:
    """A check of several."""

    title: str
    """A short name of its case: "gqa", "heads=3 dtype=float16"."""
    request: CheckRequest
    close_up: tuple[str, tuple[int, int] | None] | None = None
    """Where it is one intermediate that is asked for: its name, and the batch and head to show."""
    sanitizer: tuple[str, str] | None = None
    """The program and its tool, where it is made under one as well."""

    @property
    def layouts(self) -> tuple[str, ...]:
        """The names of the layouts that it is to run in; a run that tells more of one is not counted."""
        options = self.request.options
        if "layout" in options:
            return (" ".join(options["layout"]),)
        request = tuple(parse_run(word) for word in options.get("runs") or ())
        return tuple(map(run_name, planned_runs(request, are_saved="inputs" in options)))

    @property
    def repro_command(self) -> str:
        """The command line that repeats it alone."""
        words: dict[str, Any] = {"family": self.request.family, "reference": self.request.reference}
        name, at = self.close_up or ("", None)
        words |= {"at": f"{at[0]},{at[1]}"} if at else {}
        words |= {"sanitize": self.sanitizer[1]} if self.sanitizer else {}
        return command_line(f"diff {name}" if name else "check", self.request.target, self.request.options, words)


@dataclass(frozen=True)
class Checked:
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

    def numbered(self, number: int) -> Checked:
        """The same at a place in the plan."""
        return replace(self, report=structs.replace(self.report, number=number))

    def as_warning(self, warned: Warned) -> Checked:
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
    if report.verdict in (MATCH, MISMATCH):
        return int(report.verdict == MISMATCH)
    kind = report.error.kind if report.error else ""
    return UsageFailure.exit_code if kind == UsageFailure.__name__ else Failure.exit_code


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
