"""Faults planted in the CUDA kernels are found on a GPU: by their numbers, and races by compute-sanitizer."""

import json
import os
import subprocess
import sys

import pytest

from tests.planted.cuda_faults import CUDA_FAULTS, probed

pytestmark = pytest.mark.gpu

# An access beyond the shared memory of a block costs the process its device.
CRASHING = ("shared_memory_out_of_bounds",)
ADAPTER = """
from pathlib import Path
from gradprobe.targets.adapters import {family}_cuda as adapter

adapter.SOURCE = Path(__file__).parent / "{family}.cu"
{family}_cuda = adapter.{family}_cuda
"""


@pytest.mark.parametrize("fault", [f for f in CUDA_FAULTS if f.name not in CRASHING], ids=lambda fault: fault.name)
def test_a_fault_is_found_by_its_numbers(fault, tmp_path, record_property):
    report = probed(fault, tmp_path, device="cuda", seqlen=333, repeat=4)
    record_property("verdict", report.verdict)
    if fault.kind == "race" and report.verdict == "match":
        pytest.skip("the race did not show in the numbers")
    first = report.failing[1].first
    assert first.intermediate == fault.first
    assert fault.kind or (first.head, fault.row in (None, first.row)) == (fault.head, True)


# Racecheck looks at shared memory alone.
SHARED = [fault for fault in CUDA_FAULTS if (fault.kind, fault.array) == ("race", "memory")]


@pytest.mark.parametrize("fault", SHARED, ids=lambda fault: fault.name)
def test_a_race_is_named_by_racecheck_with_its_line(fault, tmp_path):
    ran = planted(fault, tmp_path, "--sanitize", "racecheck", "--json", "found.json")
    assert ran.returncode == 1, ran.stdout[-2000:] + ran.stderr[-2000:]
    found = json.loads((tmp_path / "found.json").read_text())
    races = [one for run in found["runs"] for one in run["memory"] if one["kind"] == "race"]
    assert any(one["code"] in fault.lines for one in races), [one["sentence"] for one in races]


@pytest.mark.parametrize("fault", [f for f in CUDA_FAULTS if f.name in CRASHING], ids=lambda fault: fault.name)
def test_an_access_outside_is_named_by_memcheck_with_its_line(fault, tmp_path):
    ran = planted(fault, tmp_path, "--sanitize", "memcheck")
    assert ran.returncode == 3, ran.stdout[-2000:] + ran.stderr[-2000:]
    assert fault.lines[0] in " ".join(ran.stderr.split())


def test_a_right_kernel_has_no_finding(tmp_path):
    for tool in ("memcheck", "racecheck", "initcheck", "synccheck"):
        ran = check(tmp_path, "flash-cuda", "--sanitize", tool)
        assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-2000:]
        assert f"compute-sanitizer's {tool} found nothing" in ran.stdout


def planted(fault, folder, *words):
    (folder / f"{fault.family}.cu").write_text(fault.plant())
    (folder / "faulty.py").write_text(ADAPTER.format(family=fault.family))
    return check(folder, f"faulty.py:{fault.family}_cuda", *words)


def check(folder, *words):
    small = ("--batch", "1", "--heads", "2", "--seqlen", "72", "--head-dim", "16", "--layout", "all=distinct")
    return subprocess.run(
        [sys.executable, "-m", "gradprobe", "check", *words, *small],
        cwd=folder, env=os.environ | {"COLUMNS": "200", "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
