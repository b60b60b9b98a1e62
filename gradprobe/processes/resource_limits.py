"""What a command may take: memory, as --max-memory says, or else half of what is free when it begins; and cores."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from ..model.failures import UsageFailure

# The environment variables of the user's limit, and of one process's share of it in bytes.
VARIABLE, SHARE = "GRADPROBE_MAX_MEMORY", "GRADPROBE_MEMORY_SHARE"
# That of how many processes share the cores.
SHARED_BY = "GRADPROBE_SHARED_BY"
# Torch, Triton and a small case together take less than this.
LEAST = 500 << 20
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_PAGE, _TICKS = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_CLK_TCK")


def parsed(word: str, where: str = "--max-memory") -> int:
    """The bytes of a word such as 3G or 1.5GiB; UsageFailure for another, or where nothing runs in so little."""
    match = re.fullmatch(r"(\d{1,12}(?:\.\d{1,6})?)\s*([kmgt]?)(?:i?b)?", word.strip().lower())
    if match is None:
        raise UsageFailure(f"{where} takes a number of bytes such as 3G or 500M, got {word!r}")
    found = int(float(match[1]) * _UNITS[match[2]])
    if found < LEAST:
        words = f"{where} {word}: torch and a small case take up to {in_words(LEAST)}"
        raise UsageFailure(words, "give it more")
    return found


def in_words(size: int) -> str:
    """Such as "2.5 GiB", or "500 MiB" below one."""
    return f"{size / (1 << 30):.1f} GiB" if size >= 1 << 30 else f"{size / (1 << 20):.0f} MiB"


def requested() -> int | None:
    """The user's limit; UsageFailure from `parsed`."""
    word = os.environ.get(VARIABLE, "")
    return parsed(word, VARIABLE) if word else None


@contextlib.contextmanager
def setting_environment(values: Mapping[str, str]) -> Iterator[None]:
    """While open, these variables have these values, in this process and in what it starts."""
    before = {name: os.environ[name] for name in values if name in os.environ}
    os.environ.update(values)
    try:
        yield
    finally:
        for name in values:
            os.environ.pop(name, None)
        os.environ.update(before)


@contextlib.contextmanager
def bounded(word: str | None) -> Iterator[None]:
    """While open, nothing that runs takes more memory than a word such as 3G says, or else the environment.

    Raises:
        UsageFailure: from `parsed`, before anything runs.
    """
    if word is not None:
        parsed(word)
    with setting_environment({} if word is None else {VARIABLE: word}):
        requested()
        yield


def limit() -> int:
    """The bytes of memory that this process may take, or its children together where they run the target."""
    share = os.environ.get(SHARE, "")
    return int(share) if share else requested() or _half_of_what_is_free()


@lru_cache(maxsize=1)  # as it was at the first call: this command itself has taken memory since
def _half_of_what_is_free() -> int:
    return max(free() // 2, 2 * LEAST)


def bytes_left() -> int:
    """The part of the limit that this process has not taken yet."""
    return limit() - held_by(os.getpid())


def held_by(process: int) -> int:
    """The bytes of memory of a process that are not mapped from files; 0 for one that has ended."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        _, resident, shared, *_ = map(int, Path(f"/proc/{process}/statm").read_text().split())
        return (resident - shared) * _PAGE
    return 0


class QuietTime:
    """For how long some processes have done next to nothing."""

    def __init__(self, processes: Sequence[int]) -> None:
        self._processes, self._since = processes, time.monotonic()
        self._used = self._ticks()

    def seconds(self) -> float:
        now, before, used = time.monotonic(), self._used, self._ticks()
        # Threads that wait look around now and then.
        idle = 0.05 * (now - self._since) * _TICKS + 2
        if used is None or before is None or abs(used - before) > idle:
            self._used, self._since = used, now
        return now - self._since

    def _ticks(self) -> int | None:
        """The processor time of those that live; None where nobody counts it, or where others work for them."""
        total = 0
        for process in self._processes:
            with contextlib.suppress(OSError):
                fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
                if Path(f"/proc/{process}/task/{process}/children").read_text().strip():
                    return None  # a compiler may work for it
                total += int(fields[11]) + int(fields[12])
        return total or None


def cores() -> int:
    """The cores that this process may take."""
    if sys.platform != "linux":
        return 1
    return len(os.sched_getaffinity(0)) // int(os.environ.get(SHARED_BY, "1"))


def free(root: Path = Path("/")) -> int:
    """The bytes that are free on this machine and in every control group (version 2) of this process."""
    found = re.search(r"^MemAvailable:\s+(\d+) kB", _text(root / "proc/meminfo"), re.MULTILINE)
    machine = int(found[1]) << 10 if found else os.sysconf("SC_PHYS_PAGES") * _PAGE
    return max(0, min([machine, *_of_groups(root)]))


def _of_groups(root: Path) -> Iterator[int]:
    """What is left to each group of this process. In a container, its own group is the root that can be seen."""
    match = re.search(r"^0::/(.*)$", _text(root / "proc/self/cgroup"), re.MULTILINE)
    own = root / "sys/fs/cgroup" / (match[1] if match else "")
    for group in (own, *own.parents):
        with contextlib.suppress(ValueError):  # "max" is no limit
            most, used = (int(_text(group / f"memory.{of}")) for of in ("max", "current"))
            stat = _text(group / "memory.stat")
            cached = re.search(r"^inactive_file (\d+)$", stat, re.MULTILINE)
            yield most - used + (int(cached[1]) if cached else 0)


def _text(file: Path) -> str:
    """What a file holds; nothing where it is not there."""
    with contextlib.suppress(OSError):
        return file.read_text()
    return ""


def words_of_loss() -> str | None:
    """The device's error in one line, where this process has lost it; None where it works or was never used.

    The device itself is asked: a library may replace CUDA's message, and a failed launch may leave it as it was.
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    try:
        torch.cuda.synchronize()
    except Exception as error:
        return str(error).strip().partition("\n")[0] or type(error).__name__
    return None


VISIBLE = "CUDA_VISIBLE_DEVICES"


def gpus(root: Path = Path("/proc/driver/nvidia/gpus")) -> tuple[str, ...]:
    """The name of each GPU that this process may use."""
    visible = os.environ.get(VISIBLE)
    if visible is not None:
        names = [part.strip() for part in visible.split(",")]
        return tuple(name for name in names if name not in ("", "-1"))
    count = len(list(root.iterdir())) if root.is_dir() else 0
    return tuple(map(str, range(count)))


def one_for_numpy() -> None:
    """Has numpy compute in one thread, unless the environment says otherwise; called before it is imported.

    Products of Triton's interpreter are small, and between two of them OpenBLAS's threads spin on the other cores.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
