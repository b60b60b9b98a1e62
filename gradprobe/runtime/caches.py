"""The folders of compiled kernels: what Triton's holds of a kernel, and running with all of them empty."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..targets.naming import triton_folder

# Of Triton, of torch's compiler, of CUDA's driver (PTX), and of CUDA kernels on the CPU.
_FOLDERS = ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "CUDA_CACHE_PATH", "GRADPROBE_CACHE_DIR")


# A file that a location of Triton's code names.
_NAMED = re.compile(r'loc\("([^"\n]+)":\d')


@contextlib.contextmanager
def fresh_caches() -> Iterator[None]:
    """While open, whatever is started finds every cache of compiled kernels empty; theirs are left as they are."""
    before = {name: os.environ.get(name) for name in _FOLDERS}
    with tempfile.TemporaryDirectory(prefix="gradprobe-fresh-", ignore_cleanup_errors=True) as folder:
        os.environ.update({name: str(Path(folder) / name.lower()) for name in _FOLDERS})
        try:
            yield
        finally:
            for name, value in before.items():
                os.environ.pop(name)
                os.environ.update({} if value is None else {name: value})


@dataclass(frozen=True)
class TritonCache:
    """What Triton's cache holds."""

    folder: str
    bytes: int
    entries: int
    """Compiled kernels."""
    oldest: float | None
    """Seconds since 1970; None of an empty one."""
    newest: float | None
    of_kernels: Mapping[str, int]
    """The entries of each kernel that was asked for, made from its file."""


def triton_cache(kernels: Mapping[str, Collection[str]]) -> TritonCache:
    """What is in the folder that the environment names.

    Args:
        kernels: the names of kernels by their file, links resolved.
    """
    folder, found, size = triton_folder(), list[Path](), 0
    for file in folder.glob("*/*") if folder.is_dir() else ():
        with contextlib.suppress(OSError):
            size += file.stat().st_size
            if file.suffix == ".json" and not file.name.startswith("__grp__"):
                found.append(file)
    times = sorted(file.stat().st_mtime for file in found)
    oldest, newest = (times[0], times[-1]) if times else (None, None)
    wanted = {name: file for file, names in kernels.items() for name in names}
    counts = {name: sum(_is_of(entry, name, file) for entry in found) for name, file in wanted.items()}
    return TritonCache(str(folder), size, len(found), oldest, newest, counts)


def _is_of(entry: Path, kernel: str, file: str) -> bool:
    """Whether an entry is of a kernel of that name in that file, which the locations in its code name."""
    if entry.stem != kernel:
        return False
    with contextlib.suppress(OSError, UnicodeDecodeError):
        named = set(_NAMED.findall(entry.with_suffix(".ttir").read_text()))
        return file in map(os.path.realpath, named)
    return False
