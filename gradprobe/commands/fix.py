"""Writes an edit that was tried into the file that it is of, where nothing of the user's is lost by it."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from ..model.failures import UsageFailure
from ..model.report import Report, TriedEdit
from ..render.files import replace_file

_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+\d+(?:,\d+)? @@")
_GIT_SECONDS = 20


def passing_edit(report: Report) -> TriedEdit | None:
    """The edit with which everything matches; None where none was found."""
    return next((one.edit for one in report.diagnoses if one.edit is not None and one.edit.matches), None)


def refuse_dirty(file: Path) -> None:
    """Does nothing where the file is as git has it, or where git knows nothing of it.

    Raises:
        UsageFailure: it has changes that are not committed.
    """
    command = ["git", "-C", str(file.parent), "status", "--porcelain", "--", file.name]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=_GIT_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return
    if ended.returncode == 0 and ended.stdout.strip() and not ended.stdout.startswith(("??", "!!")):
        raise UsageFailure(f"--apply: {file} has changes that are not committed", "commit them, or add --force")


def apply(edit: TriedEdit) -> None:
    """Writes the edit into its file.

    Raises:
        UsageFailure: the file is not the one any more that the edit was tried in, or cannot be written.
    """
    file = Path(edit.file)
    try:
        raw = file.read_bytes().decode()
        replace_file(str(file), patched(raw, edit.diff))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageFailure(f"--apply: {file} cannot be written: {error}") from error
    except ValueError as error:
        raise UsageFailure(f"--apply: {file} is not what the edit was tried in: {error}", "run it again") from error


def patched(text: str, diff: str) -> str:
    """The text with a unified diff applied.

    Raises:
        ValueError: a line of the text is not the one that the diff has there.
    """
    lines, made, at = text.split("\n"), list[str](), 0
    for start, hunk in _hunks(diff):
        made += lines[at : start - 1]
        at = start - 1
        for sign, line in hunk:
            if sign != "+":
                if at >= len(lines) or lines[at].rstrip("\r") != line:
                    raise ValueError(f"line {at + 1} has changed")
                at += 1
            if sign != "-":
                made.append(lines[at - 1] if sign == " " else line)
    return "\n".join([*made, *lines[at:]])


def _hunks(diff: str) -> Iterator[tuple[int, list[tuple[str, str]]]]:
    """(first line, [(sign, line)]) of each hunk; the signs are those of unified diffs."""
    start, hunk = 0, list[tuple[str, str]]()
    for line in diff.split("\n")[2:]:
        head = _HUNK.match(line)
        if head is None:
            hunk.append((line[:1] or " ", line[1:]))
            continue
        if hunk:
            yield start, hunk
        # A hunk that takes no line stands behind the one that it names.
        start, hunk = int(head[1]) + (head[2] == "0"), []
    if hunk:
        yield start, hunk
