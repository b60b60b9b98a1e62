import os
from pathlib import Path

import pytest
import torch

from gradprobe.model.failures import UsageFailure
from gradprobe.processes.child import fresh_caches
from gradprobe.processes.resource_limits import SHARED_BY
from gradprobe.runtime.backend import prepare_backend


@pytest.fixture(autouse=True)
def gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")


@pytest.mark.parametrize(
    ("is_child", "interpret", "asked", "chosen", "visible"),
    [
        (True, "1", "auto", "cpu", ""),
        (False, "1", "auto", "cpu", "0"),  # the user's own process keeps its GPU
        (True, "0", "auto", "cuda", "0"),
    ],
)
def test_whoever_has_kernels_interpreted_gets_them_on_the_cpu(
    monkeypatch, is_child, interpret, asked, chosen, visible
):
    monkeypatch.setenv("TRITON_INTERPRET", interpret)
    if is_child:
        monkeypatch.setenv(SHARED_BY, "1")
    else:
        monkeypatch.delenv(SHARED_BY, raising=False)
    assert prepare_backend(asked) == chosen
    assert os.environ["CUDA_VISIBLE_DEVICES"] == visible


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


def test_the_interpreter_is_no_gpus(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(UsageFailure, match="the interpreter runs on the CPU"):
        prepare_backend("cuda")
