"""What a sweep is asked for, as a plan; and its journal: that and each result, in a file whose torn end is ignored."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import IO, Any

import msgspec

from ... import __version__
from ...inputs.history import FOLDER, CheckRequest, changed_since, is_sound, make_folder
from ...model.documents import document_of, load, parsed
from ...model.failures import UsageFailure
from ...model.report import Report
from ...model.writing import open_in_place
from .outcome import CheckOutcome
from .plan import Plan, PlannedCheck, titled

SCHEMA = "gradprobe.sweep/1"
# Cases of a sweep: days of checks.
_LARGEST = 10_000
DEFAULT = FOLDER / "sweep.jsonl"
_ANEW = "sweep again, from the beginning"
_DAMAGED = (ValueError, KeyError, TypeError, AttributeError, msgspec.MsgspecError, UsageFailure)


@dataclass(frozen=True)
class SweepRequest:
    """What a sweep was asked for: the same cases in the same order follow from it."""

    requests: tuple[CheckRequest, ...]
    """Each target, with what is the same in all of its cases."""
    varied: Mapping[str, Sequence[Any]]
    """The values that an option was given, where they are several."""


def combinations(values: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """The options of each case; the last option varies fastest. UsageFailure where nobody waits for so many."""
    count = math.prod(map(len, values.values()))
    if count > _LARGEST:
        words = f"sweep: {count:,} cases are more than {_LARGEST:,}"
        raise UsageFailure(words, "give fewer values")
    rows = itertools.product(*values.values())
    return [dict(zip(values, row, strict=True)) for row in rows]


def sweep_plan(asked: SweepRequest) -> Plan:
    """The cases of a sweep, of each target the cheapest first. Raises UsageFailure where there are too many."""
    plan = Plan()
    for request in asked.requests:
        cases = list[PlannedCheck]()
        for number, options in enumerate(combinations(asked.varied), len(plan.checks)):
            title = " ".join(titled(options))
            if len(asked.requests) > 1 or not title:
                title = f"{request.target} {title}".rstrip()
            whole = replace(request, options={**request.options, **options})
            cases.append(PlannedCheck(title, whole, number=number))
        plan.checks += sorted(cases, key=attrgetter("cost"))
    return plan


class Journal:
    def __init__(
        self, asked: SweepRequest, file: str, stream: IO[bytes], reports: Sequence[Report] = ()
    ) -> None:
        self.asked, self.file, self._stream = asked, file, stream
        self._kept = {report.number: report for report in reports}

    @classmethod
    def begun(cls, asked: SweepRequest, file: str | None) -> Journal:
        """A new one in the place of what is there; without a name this folder's own, or none where that cannot be.
        UsageFailure: it cannot be written, or another sweep writes it."""
        name = file or str(DEFAULT)
        try:
            if file is None:
                make_folder()
            stream = _opened(name, "ab")
        except (OSError, UsageFailure):
            if file is not None:
                raise
            stream, name = open(os.devnull, "ab"), ""  # noqa: SIM115 - closed by `__exit__`
        with contextlib.suppress(OSError):  # a pipe or a device
            stream.truncate(0)
        journal = cls(asked, name, stream)
        journal._write({"schema": SCHEMA, "version": __version__, "asked": asked})
        return journal

    @classmethod
    def reopened(cls, file: str) -> Journal:
        """One that is there; a line that is not whole is cut off its end.
        UsageFailure: it is none, or another sweep writes it, or what made one of its results has changed."""
        with contextlib.ExitStack() as stack:
            stream = stack.enter_context(_opened(file, "r+b"))
            version, asked, reports, torn = _read(stream, file)
            stream.seek(-torn, os.SEEK_END)
            stream.truncate()
            # Of a check whose process died nobody knows what it was made of: it is made again.
            reports = list(filter(attrgetter("sources"), reports))
            changed = [] if version == __version__ else ["gradprobe"]
            for report in reports:
                changed += changed_since(report)
            if changed:
                name = os.path.relpath(changed[0]) if os.path.isabs(changed[0]) else changed[0]
                raise UsageFailure(f"--resume {file}: {name} has changed since", _ANEW)
            stack.pop_all()
            return cls(asked, file, stream, reports)

    def add(self, report: Report) -> None:
        """Appends a report, so that it is there whatever becomes of this process."""
        self._write(document_of(report))

    def _write(self, document: Mapping[str, Any]) -> None:
        self._stream.write(msgspec.json.encode(document) + b"\n")
        self._stream.flush()

    def outcome_of(self, planned: PlannedCheck, at: int) -> CheckOutcome | None:
        """What a check came to before, if it was made. Raises UsageFailure where the report is of another case."""
        report = self._kept.get(planned.number_at(at))
        if report is None:
            return None
        if report.title != planned.title:
            words = "--resume: the file holds other cases than this gradprobe makes of them"
            raise UsageFailure(words, _ANEW)
        return CheckOutcome(planned.request, report)

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()


def _read(stream: IO[bytes], file: str) -> tuple[str, SweepRequest, list[Report], int]:
    """The version that wrote it, what was asked for, the reports, and how many bytes at the end are no whole line."""
    first, *lines = stream.read().split(b"\n")
    number, reports = 1, list[Report]()
    try:
        if not lines:
            raise UsageFailure("it has no whole line")
        head = parsed(first)
        if head.get("schema") != SCHEMA:
            raise UsageFailure(f"expected the schema {SCHEMA}, got {head.get('schema')!r}")
        asked = msgspec.convert(head["asked"], SweepRequest)
        if not all(map(is_sound, asked.requests)):
            raise UsageFailure("$.asked.requests: an option has no value of its type")
        for line in lines[:-1]:
            number += 1
            reports.append(load(line))
        return str(head["version"]), asked, reports, len(lines[-1])
    except _DAMAGED as error:
        reason = f"it has no {error}" if isinstance(error, KeyError) else error
        words = f"--resume {file}: it holds no sweep of this gradprobe, line {number}: {reason}"
        raise UsageFailure(words, "gradprobe sweep --journal FILE writes one") from error


def _opened(file: str | Path, mode: str) -> IO[bytes]:
    with contextlib.ExitStack() as stack:
        try:
            stream: IO[bytes] = stack.enter_context(open_in_place(file, mode))
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            way_out = "wait for it, or name another file"
            raise UsageFailure(f"{file}: another sweep writes it", way_out) from error
        except OSError as error:
            flag = "--resume" if mode == "r+b" else "--journal"
            raise UsageFailure(f"{flag} {file}: cannot be opened, {error.strerror}") from error
        stack.pop_all()
    return stream
