"""Caches of compiled kernels: empty ones for a while."""

import os
from pathlib import Path

from gradprobe.processes.child import fresh_caches


def test_caches_are_empty_folders_for_a_while_and_then_as_before(monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", "/of/the/user")
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    with fresh_caches():
        folders = [
            Path(os.environ[f"{name}_CACHE_DIR"])
            for name in ("TRITON", "TORCHINDUCTOR", "GRADPROBE")
        ]
        assert len(set(folders)) == 3
        assert not any(folder.exists() for folder in folders)
        (folders[0] / "KEY").mkdir(parents=True)
    assert not folders[0].parent.exists()
    assert os.environ["TRITON_CACHE_DIR"] == "/of/the/user"
    assert "TORCHINDUCTOR_CACHE_DIR" not in os.environ
