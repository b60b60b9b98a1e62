"""Journal: a file with what a sweep was asked for and each result as it came; a line that is torn is ignored."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import msgspec

from ... import __version__
from ...inputs.history import FOLDER, CheckRequest, changed_since, is_sound, make_folder
from ...model.documents import document_of, load, parsed
from ...model.failures import UsageFailure
from ...model.report import Report
from ...model.writing import open_in_place

SCHEMA = "gradprobe.sweep/1"
DEFAULT = FOLDER / "sweep.jsonl"
# Sweeps of one folder at a time that keep what they come to.
_MOST = 100


@dataclass(frozen=True)
class SweepRequest:
    """What a sweep was asked for: the same cases in the same order follow from it."""

    requests: tuple[CheckRequest, ...]
    """Each target, with what is the same in all of its cases."""
    varied: Mapping[str, Sequence[Any]]
    """The values that an option was given, where they are several."""
    draw: int | None = None
    """How many cases are drawn."""
    minutes: float | None = None
    """For how long cases are drawn."""

    @property
    def is_drawn(self) -> bool:
        return self.draw is not None or self.minutes is not None


class Journal:
    """An open journal: `add` appends a report."""

    def __init__(
        self, asked: SweepRequest, file: str | Path, stream: IO[bytes], reports: Sequence[Report] = ()
    ) -> None:
        self.asked, self.file, self._stream = asked, str(file), stream
        self.reports = reports
        """What it held when it was opened."""

    @classmethod
    def begun(cls, asked: SweepRequest, file: str | None) -> Journal:
        """A new one in the place of what is there; without a name, one in this folder's own that nobody writes.

        Raises:
            UsageFailure: it cannot be written, or another sweep writes it.
        """
        stream, name = _opened(file)
        with contextlib.suppress(OSError):  # a pipe or a device
            stream.truncate(0)
        _write(stream, {"schema": SCHEMA, "version": __version__, "asked": msgspec.to_builtins(asked)})
        return cls(asked, name, stream)

    @classmethod
    def reopened(cls, file: str) -> Journal:
        """One that is there; a line that is not whole is cut off its end.

        Raises:
            UsageFailure: it is none, or another sweep writes it, or what made one of its results has changed.
        """
        with contextlib.ExitStack() as stack:
            stream = stack.enter_context(_named(file, "r+b"))
            head, asked, reports, torn = _read(stream, file)
            stream.seek(-torn, os.SEEK_END)
            stream.truncate()
            # Of a check whose process died nobody knows what it was made of: it is made again.
            reports = tuple(report for report in reports if report.sources)
            changed = [] if head["version"] == __version__ else ["gradprobe"]
            if changed := [*changed, *(name for report in reports for name in changed_since(report))]:
                name = os.path.relpath(changed[0]) if os.path.isabs(changed[0]) else changed[0]
                words = f"--resume {file}: {name} has changed since"
                raise UsageFailure(words, "sweep again, from the beginning")
            stack.pop_all()
            return cls(asked, file, stream, reports)

    def add(self, report: Report) -> None:
        """Appends a report, so that it is there whatever becomes of this process."""
        _write(self._stream, document_of(report))

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()


def _read(stream: IO[bytes], file: str) -> tuple[dict[str, Any], SweepRequest, tuple[Report, ...], int]:
    """The first line, what was asked for, the reports, and how many bytes at the end are no whole line."""
    *lines, torn = stream.read().split(b"\n")
    number = 1
    try:
        if not lines:
            raise UsageFailure("it has no whole line")
        head = parsed(lines[0])
        if head.get("schema") != SCHEMA:
            raise UsageFailure(f"expected the schema {SCHEMA}, got {head.get('schema')!r}")
        asked, _ = msgspec.convert(head["asked"], SweepRequest), str(head["version"])
        if not all(map(is_sound, asked.requests)):
            raise UsageFailure("$.asked.requests: an option has no value of its type")
        reports = []
        for line in lines[1:]:
            number += 1
            reports.append(load(line))
        return head, asked, tuple(reports), len(torn)
    except (ValueError, KeyError, TypeError, AttributeError, msgspec.MsgspecError, UsageFailure) as error:
        reason = f"it has no {error}" if isinstance(error, KeyError) else error
        words = f"--resume {file}: it holds no sweep of this gradprobe, line {number}: {reason}"
        raise UsageFailure(words, "gradprobe sweep --journal FILE writes one") from error


def _write(stream: IO[bytes], document: Mapping[str, Any]) -> None:
    stream.write(json.dumps(document, allow_nan=False).encode() + b"\n")
    stream.flush()


def _opened(file: str | None) -> tuple[IO[bytes], str | Path]:
    if file is not None:
        return _named(file, "ab"), file
    try:
        make_folder()
        for name in (DEFAULT, *(DEFAULT.with_stem(f"{DEFAULT.stem}-{number}") for number in range(2, _MOST))):
            with contextlib.suppress(BlockingIOError):
                return _locked(name, "ab"), name
    except OSError:
        pass
    return open(os.devnull, "ab"), ""  # a folder that cannot be written is no reason to fail a sweep


def _named(file: str, mode: str) -> IO[bytes]:
    try:
        return _locked(file, mode)
    except BlockingIOError as error:
        raise UsageFailure(f"{file}: another sweep writes it", "wait for it, or name another file") from error
    except OSError as error:
        flag = "--resume" if mode == "r+b" else "--journal"
        raise UsageFailure(f"{flag} {file}: cannot be opened, {error.strerror}") from error


def _locked(file: str | Path, mode: str) -> IO[bytes]:
    """An open file that no other process has open so."""
    with contextlib.ExitStack() as stack:
        stream: IO[bytes] = stack.enter_context(open_in_place(file, mode))
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        stack.pop_all()
        return stream
