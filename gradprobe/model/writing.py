"""The one place that opens files for writing: whole or not at all. Text made safe to show.

No link is followed but among folders above: one in a repository could have any file of the user's overwritten.
Report files are begun before all else, so this imports next to nothing.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterator

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path
    from typing import IO


def replace_file(path: str | Path, text: str) -> None:
    """Replaces a file or a link at once; appends to a pipe, a device or an open file. OSError."""
    if _is_stream(path):
        with open(path, "a", encoding="utf-8") as stream:
            stream.write(text)
        return
    with replacing(path) as whole:
        whole.write(text.encode())


@contextlib.contextmanager
def replacing(path: str | Path) -> Iterator[IO[bytes]]:
    """A file beside, which takes the old one's place and permissions unless it fails."""
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
    """To add to it. OSError, of a link too."""
    forbidden = 0 if _stands_for_open_file(path) else os.O_NOFOLLOW
    return open(path, mode, opener=lambda name, flags: os.open(name, flags | forbidden, 0o666))  # noqa: SIM115


def _stands_for_open_file(path: str | Path) -> bool:
    return os.path.abspath(path).startswith(("/dev/", "/proc/"))


def _is_stream(path: str | Path) -> bool:
    if _stands_for_open_file(path):
        return True
    try:
        kind = os.lstat(path).st_mode
    except FileNotFoundError:
        return False
    return not (stat.S_ISREG(kind) or stat.S_ISLNK(kind))


def _mode(path: str | Path) -> int:
    """OSError: it may not be written."""
    if os.path.islink(path) or not os.path.exists(path):
        mask = os.umask(0)
        os.umask(mask)
        return 0o666 & ~mask
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW)
    mode = os.fstat(descriptor).st_mode & 0o7777
    os.close(descriptor)
    return mode


# What XML 1.0 cannot hold or advises against, what else ends a line, and what turns the order of what is read: controls
# but tab and newline, separators, halves of characters, non-characters, and marks of direction.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff"
    + "".join(
        f"{chr(plane << 16 | 0xFFFE)}{chr(plane << 16 | 0xFFFF)}" for plane in range(1, 17)
    )
    + "]"
)
# GitHub's runner obeys a line that begins with `::` after white space, and `##[` of its predecessor anywhere in a line.
_COMMAND = re.compile(r"^([^\S\n]*):(?=:)|#(?=#\[)", re.MULTILINE)
# How a character is written where a person reads the text, in JSON, and in XML, HTML and Markdown.
PLAIN, IN_JSON, IN_MARKUP = "\\x{:02x}", "\\u{:04x}", "&#{};"


def visible(text: str) -> str:
    return _UNSEEN.sub(lambda found: repr(found[0])[1:-1], text)


def inert(text: str, written: str = PLAIN) -> str:
    """Without a command for a CI's runner: the first sign of each is written otherwise."""
    return _COMMAND.sub(lambda found: (found[1] or "") + written.format(ord(found[0][-1])), text)


def safe(text: str) -> str:
    return inert(visible(text))
