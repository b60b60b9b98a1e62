"""What a command may take: memory, as --max-memory says, or else half of what is free when it begins; and cores."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterator, Mapping
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
_PAGE = os.sysconf("SC_PAGE_SIZE")


def parsed(word: str, where: str = "--max-memory") -> int:
    """The bytes of a word such as 3G, 500M or 1.5GiB.

    Raises:
        UsageFailure: it has another form, or nothing can run in so little.
    """
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
    """The user's limit; None where there is none.

    Raises:
        UsageFailure: from `parsed`.
    """
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
    """While open, whatever runs, in this process or another, takes no more memory than was asked for.

    Args:
        word: such as 3G; None for what the environment says.

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


def cores() -> int:
    """The cores that this process may take."""
    if sys.platform != "linux":
        return 1
    return len(os.sched_getaffinity(0)) // int(os.environ.get(SHARED_BY, "1"))


def free(root: Path = Path("/")) -> int:
    """The bytes that are free on this machine and in every control group (version 2) of this process."""
    return max(0, min([_of_the_machine(root), *_of_groups(root)]))


def _of_the_machine(root: Path) -> int:
    with contextlib.suppress(OSError):
        text = (root / "proc/meminfo").read_text()
        if match := re.search(r"^MemAvailable:\s+(\d+) kB", text, re.MULTILINE):
            return int(match[1]) << 10
    return os.sysconf("SC_PHYS_PAGES") * _PAGE


def _of_groups(root: Path) -> Iterator[int]:
    """What is left to each group of this process. In a container, its own group is the root that can be seen."""
    top, path = root / "sys/fs/cgroup", ""
    with contextlib.suppress(OSError):
        match = re.search(r"^0::/(.*)$", (root / "proc/self/cgroup").read_text(), re.MULTILINE)
        path = match[1] if match else ""
    for group in (top / path, *(top / path).parents):
        with contextlib.suppress(OSError, ValueError):  # "max" is no limit
            most, used = (int((group / f"memory.{of}").read_text()) for of in ("max", "current"))
            cached = re.search(
                r"^inactive_file (\d+)$", _text(group / "memory.stat"), re.MULTILINE
            )
            yield most - used + (int(cached[1]) if cached else 0)


def _text(file: Path) -> str:
    with contextlib.suppress(OSError):
        return file.read_text()
    return ""


def words_of_loss() -> str | None:
    """The device's error in one line, where this process has lost it; None where it works or was never used.

    An exception alone does not tell. A library may replace CUDA's message or go on as if nothing had happened, and a
    failed launch may leave the device as it was. So the device itself is asked.
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
    """Has numpy compute its products in one thread, unless the environment says otherwise. Call before it is imported.

    Those of Triton's interpreter are small, and between two of them OpenBLAS's other threads spin on the other cores.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
