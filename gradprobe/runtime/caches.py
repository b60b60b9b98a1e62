"""The folders of compiled kernels: what Triton's holds, and running with all of them empty."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..targets.naming import triton_folder

# Of Triton, of torch's compiler, of CUDA's driver (PTX), and of CUDA kernels on the CPU.
_FOLDERS = ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "CUDA_CACHE_PATH", "GRADPROBE_CACHE_DIR")


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


def triton_cache() -> TritonCache:
    """What is in the folder that the environment names."""
    folder = triton_folder()
    files = [file for file in folder.glob("*/*") if file.is_file()] if folder.is_dir() else []
    kernels = [file for file in files if file.suffix == ".json" and not file.name.startswith("__grp__")]
    return TritonCache(str(folder), sum(file.stat().st_size for file in files), len(kernels))
