"""Writes an edit that was tried into the file that it is of, where nothing of the user's is lost by it."""

from __future__ import annotations

import subprocess
from pathlib import Path

from ..model.failures import UsageFailure
from ..model.patch import patched
from ..model.report import TriedEdit
from ..model.writing import replace_file

_GIT_SECONDS = 20


def refuse_link(file: Path) -> None:
    """Raises UsageFailure for a symbolic link."""
    if file.is_symlink():
        words = f"--apply: {file} is a symbolic link to {file.readlink()}, and no link is followed to write"
        raise UsageFailure(words, f"name the file itself: {file.resolve()}")


def refuse_dirty(file: Path) -> None:
    """Raises UsageFailure for a file that git knows, with changes that are not committed."""
    command = ["git", "-C", str(file.parent), "status", "--porcelain", "--", file.name]
    try:
        ran = subprocess.run(
            command, capture_output=True, text=True, timeout=_GIT_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return
    status = ran.stdout.strip() if ran.returncode == 0 else ""
    if status and not status.startswith(("??", "!!")):
        words = f"--apply: {file} has changes that are not committed"
        raise UsageFailure(words, "commit them, or add --force")


def apply(edit: TriedEdit) -> None:
    """Writes the edit into its file. Raises UsageFailure."""
    file = Path(edit.file)
    try:
        replace_file(str(file), patched(file.read_bytes().decode(), edit.diff))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageFailure(f"--apply: {file} cannot be written: {error}") from error
    except ValueError as error:
        words = f"--apply: {file} is not what the edit was tried in: {error}"
        raise UsageFailure(words, "run it again") from error
