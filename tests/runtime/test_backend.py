"""Which device is chosen."""

import pytest
import torch

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
        (True, "1", "cuda", "cuda", "0"),
        (False, "1", "auto", "cpu", "0"),  # the user's own process keeps its GPU
        (True, "0", "auto", "cuda", "0"),
    ],
)
def test_whoever_has_kernels_interpreted_gets_them_on_the_cpu(
    monkeypatch, is_child, interpret, asked, chosen, visible
):
    import os

    monkeypatch.setenv("TRITON_INTERPRET", interpret)
    if is_child:
        monkeypatch.setenv(SHARED_BY, "1")
    else:
        monkeypatch.delenv(SHARED_BY, raising=False)
    assert prepare_backend(asked) == chosen
    assert os.environ["CUDA_VISIBLE_DEVICES"] == visible
