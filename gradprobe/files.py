"""Files written whole or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path


def replace_file(path: str | Path, text: str) -> None:
    """The file holds the text, in UTF-8, and at no moment a part of it: a reader sees what was there before, or all.

    A link is followed. What is no plain file, or stands for an open one (a pipe, /dev/stdout), is added to instead.

    Raises:
        OSError: it cannot be written; what was there before is there still.
    """
    if os.path.abspath(path).startswith(("/dev/", "/proc/")) or (os.path.exists(path) and not os.path.isfile(path)):
        with open(path, "a", encoding="utf-8") as stream:
            stream.write(text)
        return
    file = Path(os.path.realpath(path))
    mode = _mode(file)
    descriptor, beside = tempfile.mkstemp(prefix=f".{file.name[:32]}.", suffix=".part", dir=file.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as stream:
            stream.write(text)
        os.chmod(beside, mode)
        os.replace(beside, file)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(beside)
        raise


def _mode(file: Path) -> int:
    """The permissions that the file has, or that a new one gets; a temporary one's are the owner's alone.

    Raises:
        OSError: it is there and may not be written.
    """
    try:
        with file.open("ab"):
            return file.stat().st_mode & 0o7777
    except FileNotFoundError:
        mask = os.umask(0)
        os.umask(mask)
        return 0o666 & ~mask


def keeps_changing(file: str) -> bool:
    """Whether a file may be written again and again; not a stream, which would hold all that was ever written."""
    return file != "-" and (Path(file).is_file() or not Path(file).exists())
