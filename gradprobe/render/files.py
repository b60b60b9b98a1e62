"""Writes files whole or not at all."""

from __future__ import annotations

import contextlib
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path


def replace_file(path: str | Path, text: str) -> None:
    """Replaces a file's content by the text, in UTF-8, at once: a reader sees the old content or all of the new.

    A link is followed. To a pipe, a device or an open file (/dev/stdout), the text is appended instead.

    Raises:
        OSError: the file cannot be written, and keeps its old content.
    """
    if os.path.abspath(path).startswith(("/dev/", "/proc/")) or (os.path.exists(path) and not os.path.isfile(path)):
        with open(path, "a", encoding="utf-8") as stream:
            stream.write(text)
        return
    file = os.path.realpath(path)
    mode = _mode(file)
    folder, name = os.path.split(file)
    beside = os.path.join(folder, f".{name[:32]}.{os.urandom(6).hex()}.part")
    try:
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "w", encoding="utf-8", newline="") as stream:
            stream.write(text)
        os.chmod(beside, mode)
        os.replace(beside, file)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(beside)
        raise


def _mode(file: str) -> int:
    """The permissions that the file has, or that a new one would get.

    Raises:
        OSError: the file exists and may not be written.
    """
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_APPEND)
    except FileNotFoundError:
        mask = os.umask(0)
        os.umask(mask)
        return 0o666 & ~mask
    mode = os.fstat(descriptor).st_mode & 0o7777
    os.close(descriptor)
    return mode


def keeps_changing(file: str) -> bool:
    """Whether a file may be written again and again. A stream may not: it would keep every version."""
    return file != "-" and (os.path.isfile(file) or not os.path.exists(file))
