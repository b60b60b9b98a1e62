"""The one place that opens files for writing: whole or not at all, and never through a symbolic link.

A link in a repository could have any file of the user's overwritten. Links among the folders above a file are followed.
This module imports next to nothing, since report files are begun before all else.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path
    from typing import IO


def replace_file(path: str | Path, text: str) -> None:
    """Replaces a file's content by the text, in UTF-8, at once: a reader sees the old content or all of the new.

    A link is replaced, and what it leads to stays as it is. To a pipe, a device or an open file (/dev/stdout), the text
    is appended instead.

    Raises:
        OSError: the file cannot be written, and keeps its old content.
    """
    if _is_stream(path):
        with open(path, "a", encoding="utf-8") as stream:
            stream.write(text)
        return
    with replacing(path) as whole:
        whole.write(text.encode())


@contextlib.contextmanager
def replacing(path: str | Path) -> Iterator[IO[bytes]]:
    """A new file beside, which takes the place of the file or link there at the end, and its permissions.

    Raises:
        OSError: the file cannot be written, and keeps its old content; so it does where the body raises.
    """
    mode = _mode(path)
    folder, name = os.path.split(path)
    beside = os.path.join(folder, f".{name[:32]}.{os.urandom(6).hex()}.part")
    try:
        descriptor = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "w+b") as stream:
            yield stream
        os.chmod(beside, mode)
        os.replace(beside, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(beside)
        raise


def open_in_place(path: str | Path, mode: str) -> IO[bytes]:
    """Opens a file that is added to, as `open` does with a mode of bytes; what stands for an open file is that file.

    Raises:
        OSError: it cannot be opened; it is a link.
    """
    forbidden = 0 if _stands_for_open_file(path) else os.O_NOFOLLOW
    return open(path, mode, opener=lambda name, flags: os.open(name, flags | forbidden, 0o666))  # noqa: SIM115


def _stands_for_open_file(path: str | Path) -> bool:
    return os.path.abspath(path).startswith(("/dev/", "/proc/"))


def _is_stream(path: str | Path) -> bool:
    """Whether it is, without a link, neither a file nor a name for a new one."""
    if _stands_for_open_file(path):
        return True
    try:
        kind = os.lstat(path).st_mode
    except FileNotFoundError:
        return False
    return not (stat.S_ISREG(kind) or stat.S_ISLNK(kind))


def _mode(path: str | Path) -> int:
    """The permissions that the file has, or that a new one would get.

    Raises:
        OSError: the file exists and may not be written.
    """
    if os.path.islink(path) or not os.path.exists(path):
        mask = os.umask(0)
        os.umask(mask)
        return 0o666 & ~mask
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW)
    mode = os.fstat(descriptor).st_mode & 0o7777
    os.close(descriptor)
    return mode
