"""TRITON_INTERPRET=1 on a machine with a GPU: what kernels hold and the edits are told as without one."""

import json

import pytest

from tests.gpu.commands import gradprobe
from tests.planted.flash_faults import INSIDE
from tests.planted.planting import KERNELS

pytestmark = pytest.mark.gpu
FAULT = next(fault for fault in INSIDE if fault.name == "delta_dropped")
WORDS = "--batch 1 --heads 2 --seqlen 40 --head-dim 16 --json report.json --fix-budget 10"


def checked(folder, words=""):
    (folder / "flash.py").write_text(FAULT.plant((KERNELS / "flash.py").read_text()))
    command = f"check flash.py:flash_black_box {WORDS} {words}"
    assert gradprobe(command, folder, TRITON_INTERPRET="1").returncode == 1
    return json.loads((folder / "report.json").read_text())


def test_on_the_gpu_what_the_kernels_hold_is_read_too(tmp_path):
    report = checked(tmp_path, "--device cuda")
    assert report["case"]["device"] == "cuda"
    assert report["target"]["backend"] == "triton-interpreter"
    assert "seen" in {one["source"] for run in report["runs"] for one in run["intermediates"]}
    assert "by a fault of gradprobe" not in json.dumps(report)
