"""How much memory a command may take: what --max-memory says, else half of what is free when it begins."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from .failures import UsageFailure

# What the user says, and what a process of several has of it, in bytes.
VARIABLE, SHARE = "GRADPROBE_MAX_MEMORY", "GRADPROBE_MEMORY_SHARE"
# What torch, Triton and a small case take by themselves is less than this.
LEAST = 500 << 20
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_PAGE = os.sysconf("SC_PAGE_SIZE")
# Of control groups, version 2 and 1: where they are, their limit, what they use, and what of that can be dropped.
_VERSIONS = (
    ("", "sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    ("memory", "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def parsed(word: str, where: str = "--max-memory") -> int:
    """Bytes of a word such as 3G, 500M or 1.5GiB.

    Raises:
        UsageFailure: it has another form, or is less than anything can be run in.
    """
    match = re.fullmatch(r"(\d{1,12}(?:\.\d{1,6})?)\s*([kmgt]?)(?:i?b)?", word.strip().lower())
    if match is None:
        raise UsageFailure(f"{where} takes a number of bytes such as 3G or 500M, got {word!r}")
    found = int(float(match[1]) * _UNITS[match[2]])
    if found < LEAST:
        raise UsageFailure(f"{where} {word}: torch and a small case take up to {in_words(LEAST)}", "give it more")
    return found


def in_words(size: int) -> str:
    """Such as "2.5 GiB", or "500 MiB" below one."""
    return f"{size / (1 << 30):.1f} GiB" if size >= 1 << 30 else f"{size / (1 << 20):.0f} MiB"


def asked() -> int | None:
    """What the user says; None where nothing is said.

    Raises:
        UsageFailure: from `parsed`.
    """
    word = os.environ.get(VARIABLE, "")
    return parsed(word, VARIABLE) if word else None


def limit() -> int:
    """The bytes of memory that this process may take, or its children together where it runs the target in some."""
    share = os.environ.get(SHARE, "")
    return int(share) if share else asked() or _half_of_what_is_free()


@lru_cache(maxsize=1)
def _half_of_what_is_free() -> int:
    """As it was at the first question: what is taken since was taken by this command."""
    return max(free() // 2, 2 * LEAST)


def left() -> int:
    """What of it this process has not taken yet."""
    return limit() - held_by(os.getpid())


def held_by(process: int) -> int:
    """The bytes of memory that a process has to itself, other than as a view of a file; 0 of one that is over."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        _, resident, shared, *_ = map(int, Path(f"/proc/{process}/statm").read_text().split())
        return (resident - shared) * _PAGE
    return 0


def free(root: Path = Path("/")) -> int:
    """The bytes that may be taken before the machine, or a control group that this process is in, has none left."""
    return max(0, min([_of_the_machine(root), *_of_groups(root)]))


def _of_the_machine(root: Path) -> int:
    with contextlib.suppress(OSError):
        if match := re.search(r"^MemAvailable:\s+(\d+) kB", (root / "proc/meminfo").read_text(), re.MULTILINE):
            return int(match[1]) << 10
    return os.sysconf("SC_PHYS_PAGES") * _PAGE


def _of_groups(root: Path) -> Iterator[int]:
    """What is left to each group that holds this process; in a container its own is the root of what can be seen."""
    lines: list[str] = []
    with contextlib.suppress(OSError):
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    for line in lines:
        _, controllers, path = line.split(":", 2)
        for controller, folder, most, used, cached in _VERSIONS:
            if controller in controllers.split(","):
                top = root / folder
                for group in (top / path.lstrip("/"), *(top / path.lstrip("/")).parents):
                    if group.is_relative_to(top):
                        with contextlib.suppress(OSError, ValueError):
                            yield int((group / most).read_text()) - _used(group, used, cached)


def _used(group: Path, used: str, cached: str) -> int:
    found = int((group / used).read_text())
    with contextlib.suppress(OSError):
        match = re.search(rf"^{cached} (\d+)$", (group / "memory.stat").read_text(), re.MULTILINE)
        found -= int(match[1]) if match else 0
    return found
