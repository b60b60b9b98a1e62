"""Sweeps on GPUs: each of several workers has a GPU of its own, also on Ray."""

import importlib.util
import json
from pathlib import Path

import pytest
import torch

from tests.gpu.commands import gradprobe

pytestmark = pytest.mark.gpu
SIZES = "--seqlen 20 --seqlen 64 --seqlen 128 --heads 1 --heads 2 --heads 3"
WORDS = f"{SIZES} --dtype float16 --head-dim 64 --shrink-budget 0 --json all.json"
TARGET = """
import os
import torch
def f(q, k, v, *, scale):
    assert torch.cuda.device_count() == 1, os.environ.get("CUDA_VISIBLE_DEVICES")
    with open("seen.txt", "a") as file:
        print(os.environ["CUDA_VISIBLE_DEVICES"], file=file)
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=scale, enable_gqa=True)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "held.py").write_text(TARGET)
    return tmp_path


def sweep(words):
    ran = gradprobe(f"sweep {words}", Path.cwd())
    return ran.returncode, json.loads(Path("all.json").read_text())


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("how", ["", "--workers 4", "--ray local --workers 2"])
def test_each_worker_sees_one_gpu_and_all_of_them_are_used(how):
    if "--ray" in how and importlib.util.find_spec("ray") is None:
        pytest.skip("needs the extra `cluster`")
    code, document = sweep(f"held.py:f {WORDS} --layout contiguous {how}")
    assert (code, document["verdict"]) == (0, "match")
    every = {str(at) for at in range(torch.cuda.device_count())}
    assert set(Path("seen.txt").read_text().split()) == every
