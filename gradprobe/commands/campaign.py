"""A gate: a command that is to fail where a kernel is wrong. A campaign: what it makes of the mutants of a file."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import tempfile
import textwrap
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.text import Text

from ..model.failures import TargetFailure, UsageFailure
from ..model.number import plural
from ..processes.ended import words_of
from ..processes.executables import (
    STARTUP,
    EndedProgram,
    Program,
    gradprobe_command,
    run_programs,
)
from ..render.notation import CAUTION
from ..render.rows import folded, headed
from ..source.kernel_file import KernelFile
from .mutants import CLASSES, Mutant

KILLED, SURVIVED, INVALID = "killed", "survived", "did_not_run"
# A mutant is stopped after so many times the seconds of the gate on the file as it is, and so many seconds more.
_TIMES, _MORE = 5.0, 30.0


@dataclass(frozen=True)
class Gate:
    """What each mutant is put to."""

    command: tuple[str, ...]
    words: str
    """The command as a person types it."""
    own: bool
    """Whether it is gradprobe's, whose exit codes tell a wrong number from a crash."""

    @classmethod
    def of(cls, words: str) -> Gate:
        """A command; one of gradprobe's is run by this Python with this gradprobe.

        Raises:
            UsageFailure: it is empty, or its quotes do not close.
        """
        try:
            first, *rest = shlex.split(words)
        except ValueError as error:
            way_out = "such as --check 'pytest -q tests/test_flash.py'"
            raise UsageFailure(f"--check takes a command, got {words!r}", way_out) from error
        own = first == "gradprobe"
        return cls(gradprobe_command(*rest) if own else (first, *rest), words, own)

    def judged(self, code: int) -> str:
        """KILLED, SURVIVED or INVALID, from the exit code as Popen gives it.

        gradprobe exits with 1 for a mismatch, and with more for a kernel that does not run. Every other gate exits with
        anything but 0 for a failing test.
        """
        if code == 0:
            return SURVIVED
        return KILLED if code == 1 or not self.own else INVALID

    def telling(self, output: str) -> str:
        """The line of what a gate wrote that says most: its first mismatch, its first failure, else the last."""
        heads = ("FIRST MISMATCH ", "gradprobe: ") if self.own else ("FAILED ", "ERROR ")
        lines = [line.strip() for line in output.splitlines() if line.strip()]
        last = lines[-1] if lines else ""
        return next((line for line in lines if line.startswith(heads)), last)


@dataclass(frozen=True)
class Shadow:
    """An edited copy of a file that other processes load in its place, and what they told of it."""

    file: Path
    folder: Path

    @property
    def copy(self) -> Path:
        return self.folder / self.file.name

    def write(self, text: str) -> None:
        self.folder.mkdir(parents=True)
        self.copy.write_bytes(text.encode())

    def program(self, command: Sequence[str], **more: str) -> Program:
        """A program which, with all that it starts, loads the copy."""
        place = {"file": str(self.file.resolve()), "copy": str(self.copy)}
        place["loaded"] = str(self.folder / "loaded")
        plain = {**os.environ, **more}
        path = os.pathsep.join(filter(None, [str(STARTUP), plain.get("PYTHONPATH", "")]))
        own = {"PYTHONPATH": path, "GRADPROBE_MUTANT": json.dumps(place)}
        return Program(tuple(command), plain | own)

    @property
    def was_loaded(self) -> bool:
        return (self.folder / "loaded").exists()


@dataclass(frozen=True)
class Campaign:
    """What is asked of a file's mutants, and what came of them so far, or in the end."""

    target: str
    gate: Gate
    file: KernelFile
    possible: int
    """How many mutants the file has, of the classes asked for."""
    chosen: tuple[Mutant, ...]
    workers: int
    timeout: float | None
    """Seconds for one mutant; None for what the gate's own time on the file gives."""
    outcomes: tuple[Mutant, ...] = ()
    """Those with a verdict, in the order of the file."""
    seconds: float = 0.0
    plain_seconds: float = 0.0
    """Of the gate on the file as it is."""

    def having(self, verdict: str) -> list[Mutant]:
        return [mutant for mutant in self.outcomes if mutant.verdict == verdict]

    @property
    def exit_code(self) -> int:
        """0 where none survived and any was killed, 1 where one survived, 3 where nothing ran."""
        if self.having(SURVIVED):
            return 1
        return 0 if self.having(KILLED) else 3

    def run(self) -> Iterator[Campaign]:
        """Puts every chosen mutant to the gate: what is known after each.

        Raises:
            UsageFailure, TargetFailure: the gate does not pass the file as it is, or never imports it.
        """
        start, found = time.perf_counter(), dict[int, Mutant]()
        with tempfile.TemporaryDirectory(prefix="gradprobe-mutate-") as folder:
            plain = self._as_it_is(Path(folder))
            limit = self.timeout or _TIMES * plain.seconds + _MORE
            shadows = [Shadow(self.file.path, Path(folder) / each.name) for each in self.chosen]
            for mutant, shadow in zip(self.chosen, shadows, strict=True):
                shadow.write(mutant.plant(self.file.text))
            programs = [self._program(shadow) for shadow in shadows]
            ends = run_programs(programs, timeout=limit, workers=self.workers)
            with contextlib.closing(ends):  # type: ignore[type-var]
                for ended in ends:
                    verdict, words = self._judged(ended, shadows[ended.number], limit)
                    found[ended.number] = replace(
                        self.chosen[ended.number],
                        verdict=verdict,
                        words=words,
                        seconds=ended.seconds,
                    )
                    outcomes = tuple(found[number] for number in sorted(found))
                    took = time.perf_counter() - start
                    yield replace(
                        self, outcomes=outcomes, seconds=took, plain_seconds=plain.seconds
                    )

    def _program(self, shadow: Shadow) -> Program:
        return shadow.program(self.gate.command, COLUMNS="120", GRADPROBE_FIX_BUDGET="0")

    def _as_it_is(self, folder: Path) -> EndedProgram:
        """What the gate does to the file as it is."""
        gate, shadow = self.gate, Shadow(self.file.path, folder / "as-it-is")
        shadow.write(self.file.text)
        (plain,) = run_programs([self._program(shadow)], timeout=self.timeout)
        if plain.code != 0:
            what = (
                "took too long" if plain.code is None else f"ended with exit code {plain.code}"
            )
            words = f"the gate fails without any fault: {gate.words}: {what}: {gate.telling(plain.output)}"
            is_refused = gate.own and plain.code == UsageFailure.exit_code
            kind = UsageFailure if is_refused else TargetFailure
            raise kind(words, "make it pass on the file as it is first")
        if not shadow.was_loaded:
            path = self.file.path
            way_out = (
                f"name the file that it runs with --file, or import {path.name} as a module"
            )
            raise TargetFailure(f"{gate.words}: passes, but never imports {path}", way_out)
        return plain

    def _judged(self, ended: EndedProgram, shadow: Shadow, limit: float) -> tuple[str, str]:
        """The verdict, and what the gate says."""
        if ended.code is None:
            return KILLED, f"no answer within {limit:.0f} s: stopped"
        if not shadow.was_loaded:
            return INVALID, "the gate ended without importing it"
        verdict = self.gate.judged(ended.code)
        words = "" if verdict == SURVIVED else self.gate.telling(ended.output)
        if ended.code < 0:
            words = "; ".join(filter(None, [words_of(ended.code), words]))
        return verdict, words


_GAP = "survived: the gate has a gap, or the edit changes no result"
# Mutants that did not run and are named; the others are in the JSON.
_NAMED = 3
_STYLES = {KILLED: "bold green", SURVIVED: "bold red", INVALID: f"bold {CAUTION}"}


def render_campaign(campaign: Campaign, width: int) -> Iterator[Text]:
    """The campaign as lines; the table fits 80 columns, sentences and code are folded to `width`."""
    yield from _verdict(campaign, width)
    yield from (Text(), *_table(campaign), Text())
    survivors = campaign.having(SURVIVED)
    if survivors:
        yield Text(f"  {_GAP}", "dim")
    for mutant in survivors:
        yield from _mutant(mutant, width)
    for sentence in _sentences(campaign):
        yield from folded(sentence, width)


def _verdict(campaign: Campaign, width: int) -> list[Text]:
    verdict = {0: KILLED, 1: SURVIVED, 3: INVALID}[campaign.exit_code]
    invalid = len(campaign.having(INVALID))
    words = f"{len(campaign.having(verdict)):,} of {plural(len(campaign.outcomes), 'fault')}"
    if invalid and verdict != INVALID:
        words += f" ({invalid:,} did not run)"
    head = "NOT RUN" if verdict == INVALID else verdict.upper()
    told = f"{words}: {campaign.target}, by {campaign.gate.words}"
    return headed(head, _STYLES[verdict], told, width)


def _table(campaign: Campaign) -> Iterator[Text]:
    """How many of each class were killed."""
    longest = max(map(len, CLASSES.values()))
    for name, title in CLASSES.items():
        those = [each.verdict for each in campaign.outcomes if each.fault_class == name]
        if those:
            killed, planted = those.count(KILLED), len(those)
            style = "green" if killed == planted else "red"
            told = f"{killed:>3,} of {planted:,} killed"
            yield Text.assemble(f"  {name:<6}{title:<{longest}}  ", (told, style))


def _mutant(mutant: Mutant, width: int) -> Iterator[Text]:
    words = f"  {mutant.fault_class}  {mutant.name} in {mutant.function}"
    yield Text.assemble("  ", (f"{mutant.file.rpartition('/')[2]}:{mutant.line}", "bold"), words)
    for sign, code, style in (("-", mutant.before, "red"), ("+", mutant.after, "green")):
        fold = textwrap.TextWrapper(
            max(width, 40), f"    {sign} ", " " * 10, break_on_hyphens=False
        )
        yield from (Text(line, style) for line in fold.wrap(code))


def _sentences(campaign: Campaign) -> Iterator[str]:
    invalid = campaign.having(INVALID)
    for mutant in invalid[:_NAMED]:
        words = mutant.words.removeprefix("gradprobe: ")
        yield f"did not run: {mutant.name}, line {mutant.line}: {words}"
    if len(invalid) > _NAMED:
        yield f"and {len(invalid) - _NAMED:,} more did not run: --json FILE names them"
    faults = plural(campaign.possible, "fault")
    possible = f"{faults} that can be planted in {campaign.file.path.name}"
    took = f"in {campaign.seconds:.0f} s; the gate alone takes {campaign.plain_seconds:.1f} s"
    yield f"tried {len(campaign.outcomes):,} of {possible}, {took}"


def campaign_as_json(campaign: Campaign, repro_command: str) -> dict[str, Any]:
    """The document, ready for `json.dumps`; verdict "survived" where any mutant did, else "killed" or "error"."""
    gate = campaign.gate
    return {
        "schema": "gradprobe.mutate/1",
        "verdict": {0: "killed", 1: "survived", 3: "error"}[campaign.exit_code],
        "target": campaign.target,
        "file": str(campaign.file.path),
        "gate": {"command": gate.words, "own": gate.own, "seconds": campaign.plain_seconds},
        "possible": campaign.possible,
        "chosen": len(campaign.chosen),
        "planted": len(campaign.outcomes),
        **{verdict: len(campaign.having(verdict)) for verdict in _STYLES},
        "mutants": list(map(_as_plain, campaign.outcomes)),
        "reproduce": repro_command,
        "seconds": round(campaign.seconds, 3),
    }


def _as_plain(mutant: Mutant) -> dict[str, Any]:
    names = ("name", "function", "line", "before", "after", "diff", "verdict", "words")
    told = {name: getattr(mutant, name) for name in names}
    return told | {"class": mutant.fault_class, "seconds": round(mutant.seconds, 3)}
