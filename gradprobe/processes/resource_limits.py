"""What a command may take: memory, as --max-memory says, or else half of what is free when it begins; and cores."""

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
    """The bytes of a word such as 3G or 1.5GiB; UsageFailure for another, or too little."""
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
    word = os.environ.get(VARIABLE, "")
    return parsed(word, VARIABLE) if word else None


@contextlib.contextmanager
def setting_environment(values: Mapping[str, str]) -> Iterator[None]:
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
    """While open, nothing that runs takes more memory than a word such as 3G says; UsageFailure from `parsed`."""
    if word is not None:
        parsed(word)
    with setting_environment({} if word is None else {VARIABLE: word}):
        requested()
        yield


def limit() -> int:
    """The bytes of memory that this process may take, or its children together where they run the target."""
    return int(os.environ.get(SHARE) or 0) or requested() or _half_of_what_is_free()


@lru_cache(maxsize=1)  # as it was at the first call: this command itself has taken memory since
def _half_of_what_is_free() -> int:
    return max(free() // 2, 2 * LEAST)


def bytes_left() -> int:
    return limit() - held_by(os.getpid())


def held_by(process: int) -> int:
    """The bytes of a process that are not mapped from files; 0 of one that has ended."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        _, resident, shared, *_ = map(int, Path(f"/proc/{process}/statm").read_text().split())
        return (resident - shared) * _PAGE
    return 0


class QuietTime:
    """For how long some processes have done next to nothing."""

    def __init__(self, processes: Sequence[int]) -> None:
        self._processes, self._since, self._used = processes, time.monotonic(), -1

    def seconds(self) -> float:
        now, used = time.monotonic(), sum(map(_ticks_of, self._processes))
        # Threads that wait look around now and then.
        idle = 0.05 * (now - self._since) * _TICKS + 2
        if self._used < 0 or not used or abs(used - self._used) > idle:
            self._used, self._since = used, now
        return now - self._since


def _ticks_of(process: int) -> int:
    """Its processor time, with that of what it started, such as compilers."""
    with contextlib.suppress(OSError):
        own = Path(f"/proc/{process}/task/{process}/children").read_text().split()
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12]) + sum(_ticks_of(int(child)) for child in own)
    return 0


def cores() -> int:
    if sys.platform != "linux":
        return 1
    return len(os.sched_getaffinity(0)) // int(os.environ.get(SHARED_BY, "1"))


def free(root: Path = Path("/")) -> int:
    """The bytes that are free on this machine and in every control group (version 2) of this process."""
    machine = _number(root / "proc/meminfo", r"^MemAvailable:\s+(\d+) kB") << 10
    found = [machine or os.sysconf("SC_PHYS_PAGES") * _PAGE]
    # In a container, its own group is the root that can be seen.
    own = re.search(r"^0::/(.*)$", _text(root / "proc/self/cgroup"), re.MULTILINE)
    place = root / "sys/fs/cgroup" / (own[1] if own else "")
    for group in (place, *place.parents):
        if most := _number(group / "memory.max", r"^(\d+)$"):  # "max" is no limit
            cached = _number(group / "memory.stat", r"^inactive_file (\d+)$")
            found.append(most - _number(group / "memory.current", r"^(\d+)$") + cached)
    return max(0, min(found))


def _number(file: Path, pattern: str) -> int:
    match = re.search(pattern, _text(file), re.MULTILINE)
    return int(match[1]) if match else 0


def _text(file: Path) -> str:
    with contextlib.suppress(OSError):
        return file.read_text()
    return ""


def words_of_loss() -> str | None:
    """The device's own error in one line, where this process has lost it; libraries reword it."""
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
    if (visible := os.environ.get(VISIBLE)) is not None:
        names = (part.strip() for part in visible.split(","))
        return tuple(name for name in names if name not in ("", "-1"))
    return tuple(map(str, range(len(list(root.glob("*"))))))


def one_for_numpy() -> None:
    """Before numpy is imported: products of Triton's interpreter are small, and threads spin between them."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
