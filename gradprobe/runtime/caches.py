"""The folders of compiled kernels, and running with all of them empty."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

# Of Triton, of torch's compiler, of CUDA's driver (PTX), and of CUDA kernels on the CPU.
_FOLDERS = ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "CUDA_CACHE_PATH", "GRADPROBE_CACHE_DIR")


@contextlib.contextmanager
def fresh_caches() -> Iterator[None]:
    """While open, whatever is started finds every cache of compiled kernels empty; theirs are left as they are."""
    before = {name: os.environ.get(name) for name in _FOLDERS}
    with tempfile.TemporaryDirectory(prefix="gradprobe-fresh-", ignore_cleanup_errors=True) as folder:
        for name in _FOLDERS:
            os.environ[name] = str(Path(folder) / name.lower())
        try:
            yield
        finally:
            for name, value in before.items():
                del os.environ[name]
                if value is not None:
                    os.environ[name] = value
