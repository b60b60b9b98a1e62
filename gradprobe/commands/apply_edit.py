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
    """Does nothing where the file is no symbolic link.

    Raises:
        UsageFailure: it is a link.
    """
    if file.is_symlink():
        words = f"--apply: {file} is a symbolic link to {file.readlink()}, and no link is followed to write"
        raise UsageFailure(words, f"name the file itself: {file.resolve()}")


def refuse_dirty(file: Path) -> None:
    """Does nothing where the file is as git has it, or where git knows nothing of it.

    Raises:
        UsageFailure: it has changes that are not committed.
    """
    command = ["git", "-C", str(file.parent), "status", "--porcelain", "--", file.name]
    try:
        ended = subprocess.run(
            command, capture_output=True, text=True, timeout=_GIT_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return
    if (
        ended.returncode == 0
        and ended.stdout.strip()
        and not ended.stdout.startswith(("??", "!!"))
    ):
        raise UsageFailure(
            f"--apply: {file} has changes that are not committed", "commit them, or add --force"
        )


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
        raise UsageFailure(
            f"--apply: {file} is not what the edit was tried in: {error}", "run it again"
        ) from error
