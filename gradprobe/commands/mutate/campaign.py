"""A gate: a command that is to fail where a kernel is wrong. A campaign: what it makes of the mutants of a file."""

from __future__ import annotations

import contextlib
import os
import shlex
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ...model.failures import TargetFailure, UsageFailure
from ...processes.ended import words_of
from ...processes.executables import EndedProgram, Program, gradprobe_command, run_programs
from ...source.kernel_file import KernelFile
from .mutant import Mutant
from .shadow import Shadow

KILLED, SURVIVED, INVALID = "killed", "survived", "did not run"
# A mutant is stopped after so many times the seconds of the gate on the file as it is, and so many seconds more.
_TIMES, _MORE = 5.0, 30.0
# The first words of what is said of a gate that was stopped.
LATE = "no answer within"


@dataclass(frozen=True)
class Gate:
    """What each mutant is put to."""

    command: tuple[str, ...]
    words: str
    """The command as a person types it."""
    own: bool
    """Whether it is gradprobe's, whose exit codes tell a wrong number from a crash."""

    def judged(self, code: int) -> str:
        """KILLED, SURVIVED or INVALID, from the exit code as Popen gives it.

        gradprobe's own gate exits with 1 for a mismatch, and with more for a kernel that does not run. Every other gate
        exits with anything but 0 for a failing test.
        """
        if code == 0:
            return SURVIVED
        return KILLED if code == 1 or not self.own else INVALID

    def telling(self, output: str) -> str:
        """The line of what a gate wrote that says most: its first mismatch, its first failure, else the last."""
        heads = ("FIRST MISMATCH ", "gradprobe: ") if self.own else ("FAILED ", "ERROR ")
        lines = [line.strip() for line in output.splitlines() if line.strip()]
        return next(
            (line for line in lines if line.startswith(heads)), lines[-1] if lines else ""
        )


def own_gate(words: str) -> Gate:
    """One of gradprobe's commands, run by this Python with this gradprobe."""
    return Gate(gradprobe_command(*shlex.split(words)[1:]), words, own=True)


def other_gate(words: str) -> Gate:
    """A command of the user's. Raises UsageFailure where it is empty, or its quotes do not close."""
    try:
        command: Sequence[str] = shlex.split(words)
    except ValueError as error:
        raise UsageFailure(f"--check {words!r} cannot be read: {error}") from error
    if not command:
        raise UsageFailure(
            "--check takes a command, got nothing",
            "such as --check 'pytest -q tests/test_flash.py'",
        )
    return Gate(tuple(command), words, own=False)


@dataclass(frozen=True)
class MutantOutcome:
    """What came of one mutant."""

    mutant: Mutant
    verdict: str
    """KILLED, SURVIVED or INVALID."""
    words: str
    """Of the gate: its first mismatch, its error; or why it was not asked."""
    seconds: float
    ran: bool | None = None
    """Whether the gate runs the line that is changed; None where that is not known."""


@dataclass(frozen=True)
class Campaign:
    """What came of a file's mutants, so far or in the end."""

    target: str
    gate: Gate
    file: Path
    planted: tuple[Mutant, ...]
    """All that the file can be given, of the classes asked for."""
    tried: int
    """How many of them are to be tried."""
    outcomes: tuple[MutantOutcome, ...]
    """In the order of the file."""
    seconds: float
    plain_seconds: float
    """Of the gate on the file as it is."""

    def having(self, verdict: str) -> list[MutantOutcome]:
        """The outcomes of one verdict."""
        return [outcome for outcome in self.outcomes if outcome.verdict == verdict]

    @property
    def exit_code(self) -> int:
        """0 where none survived and any was killed, 1 where one survived, 3 where nothing ran."""
        if self.having(SURVIVED):
            return 1
        return 0 if self.having(KILLED) else 3


@dataclass(frozen=True)
class CampaignTerms:
    """How a campaign is run."""

    workers: int
    timeout: float | None
    """Seconds for one mutant; None for what the gate's own time on the file gives."""
    watches_lines: bool
    """Whether lines that the gate never runs can be told: not where kernels are compiled or run in other threads."""


def campaign(
    target: str,
    file: KernelFile,
    gate: Gate,
    mutants: Sequence[Mutant],
    chosen: Sequence[Mutant],
    terms: CampaignTerms,
    told: Callable[[Campaign], None],
) -> Campaign:
    """Puts every chosen mutant to the gate.

    Args:
        mutants: all that there are, for the counts.
        told: what is known after each.

    Raises:
        UsageFailure, TargetFailure: the gate does not pass the file as it is, or never imports it.
    """
    start, outcomes = time.perf_counter(), dict[str, MutantOutcome]()
    with tempfile.TemporaryDirectory(prefix="gradprobe-mutate-") as folder:
        plain, lines = _as_it_is(gate, file, Path(folder), terms)
        found = Campaign(
            target, gate, file.path, tuple(mutants), len(chosen), (), 0.0, plain.seconds
        )
        tried, ran, shadows = [], [], []
        for mutant in chosen:
            runs = _runs(mutant, file, lines)
            # gradprobe's gate does the same each time: a line that it did not run it will not run.
            if runs is False and gate.own:
                outcomes[mutant.name] = MutantOutcome(mutant, SURVIVED, "", 0.0, ran=False)
                continue
            shadow = Shadow(file.path, Path(folder) / mutant.name)
            shadow.write(mutant.plant(file.text))
            tried.append(mutant)
            ran.append(runs)
            shadows.append(shadow)

        def so_far() -> Campaign:
            in_order = tuple(
                outcomes[mutant.name] for mutant in chosen if mutant.name in outcomes
            )
            return replace(found, outcomes=in_order, seconds=time.perf_counter() - start)

        timeout = terms.timeout or _TIMES * plain.seconds + _MORE
        programs = [_program(gate, shadow) for shadow in shadows]
        ends = run_programs(programs, timeout=timeout, workers=terms.workers)
        with contextlib.closing(ends):  # type: ignore[type-var]
            for ended in ends:
                at = ended.number
                verdict, words = _judged(gate, ended, shadows[at], timeout)
                outcomes[tried[at].name] = MutantOutcome(
                    tried[at], verdict, words, ended.seconds, ran[at]
                )
                told(so_far())
    return so_far()


def _as_it_is(
    gate: Gate, file: KernelFile, folder: Path, terms: CampaignTerms
) -> tuple[EndedProgram, frozenset[int]]:
    """What the gate does to the file as it is, and the lines of it that run."""
    shadow = Shadow(file.path, folder / "as-it-is", terms.watches_lines)
    shadow.write(file.text)
    (plain,) = run_programs([_program(gate, shadow)], timeout=terms.timeout)
    if plain.code != 0:
        what = "took too long" if plain.code is None else f"ended with exit code {plain.code}"
        words = f"the gate fails without any fault: {gate.words}: {what}: {gate.telling(plain.output)}"
        wrong_words = gate.own and plain.code == UsageFailure.exit_code
        raise (UsageFailure if wrong_words else TargetFailure)(
            words, "make it pass on the file as it is first"
        )
    if not shadow.was_loaded:
        way_out = (
            f"name the file that it runs with --file, or import {file.path.name} as a module"
        )
        raise TargetFailure(f"{gate.words}: passes, but never imports {file.path}", way_out)
    return plain, shadow.lines


def _program(gate: Gate, shadow: Shadow) -> Program:
    return Program(
        gate.command,
        shadow.environment({**os.environ, "COLUMNS": "120", "GRADPROBE_FIX_BUDGET": "0"}),
    )


def _runs(mutant: Mutant, file: KernelFile, lines: frozenset[int]) -> bool | None:
    """Whether the changed statement ran in the gate on the file as it is; None where it cannot be told.

    Where no kernel ran a line in Python they were compiled, and nothing is known.
    """
    bodies = [
        (kernel.body[0].lineno, kernel.end_lineno or kernel.lineno) for kernel in file.kernels
    ]
    if mutant.statement is None or not any(
        first <= line <= last for line in lines for first, last in bodies
    ):
        return None
    return any(mutant.statement[0] <= line <= mutant.statement[1] for line in lines)


def _judged(gate: Gate, ended: EndedProgram, shadow: Shadow, timeout: float) -> tuple[str, str]:
    """The verdict, and what the gate says."""
    if ended.code is None:
        return KILLED, f"{LATE} {timeout:.0f} s: stopped"
    if not shadow.was_loaded:
        return INVALID, "the gate ended without importing it"
    verdict = gate.judged(ended.code)
    words = "" if verdict == SURVIVED else gate.telling(ended.output)
    if ended.code < 0:
        words = "; ".join(filter(None, [words_of(ended.code), words]))
    return verdict, words
