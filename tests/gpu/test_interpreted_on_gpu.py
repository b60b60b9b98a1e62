"""TRITON_INTERPRET=1 on a machine with a GPU: what kernels hold and the edits are told as without one."""

import json
import os
import subprocess
import sys

import pytest

from tests.planted.flash_faults import INSIDE
from tests.planted.planting import KERNELS

pytestmark = pytest.mark.gpu
FAULT = next(fault for fault in INSIDE if fault.name == "delta_dropped")
SMALL = ["--batch", "1", "--heads", "2", "--seqlen", "40", "--head-dim", "16"]


@pytest.fixture(scope="module")
def checked(tmp_path_factory):
    def check(*words):
        folder = tmp_path_factory.mktemp("interpreted")
        (folder / "flash.py").write_text(FAULT.plant((KERNELS / "flash.py").read_text()))
        command = [
            sys.executable,
            "-m",
            "gradprobe",
            "check",
            "flash.py:flash_black_box",
            *SMALL,
            *words,
        ]
        command += ["--json", "report.json", "--fix-budget", "10"]
        environment = {**os.environ, "TRITON_INTERPRET": "1"}
        ended = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        assert ended.returncode == 1, ended.stderr
        return json.loads((folder / "report.json").read_text())

    return check


def test_without_a_device_the_tensors_lie_on_the_host_and_an_edit_is_tried(checked):
    report = checked()
    assert report["case"]["device"] == "cpu"
    assert any(
        one["edit"] and one["edit"]["diff"] for one in report["diagnoses"]
    )  # of one of the two places
    assert "by a fault of gradprobe" not in json.dumps(report)


def test_on_the_gpu_what_the_kernels_hold_is_read_too(checked):
    report = checked("--device", "cuda")
    assert report["case"]["device"] == "cuda"
    assert report["target"]["backend"] == "triton-interpreter"
    assert "seen" in {one["source"] for run in report["runs"] for one in run["intermediates"]}
    assert "by a fault of gradprobe" not in json.dumps(report)
