"""A gate: a command that is to fail where a kernel is wrong, and what its end means."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from ..failures import UsageFailure
from ..isolation.programs import gradprobe_command

KILLED, SURVIVED, INVALID = "killed", "survived", "did not run"
_GREPPABLE = "FIRST MISMATCH "


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
        lines = [line.strip() for line in output.splitlines() if line.strip()]
        if self.own:
            told = [line for line in lines if line.startswith((_GREPPABLE, "gradprobe: "))]
        else:
            told = [line for line in lines if line.startswith(("FAILED ", "ERROR "))]
        return (told or lines[-1:] or [""])[0]


def own_gate(words: str) -> Gate:
    """One of gradprobe's commands, run by this Python with this gradprobe."""
    return Gate(gradprobe_command(*shlex.split(words)[1:]), words, own=True)


def other_gate(words: str) -> Gate:
    """A command of the user's.

    Raises:
        UsageFailure: it is empty, or its quotes do not close.
    """
    try:
        command: Sequence[str] = shlex.split(words)
    except ValueError as error:
        raise UsageFailure(f"--check {words!r} cannot be read: {error}") from error
    if not command:
        raise UsageFailure("--check takes a command, got nothing", "such as --check 'pytest -q tests/test_flash.py'")
    return Gate(tuple(command), words, own=False)
