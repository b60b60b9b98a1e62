"""`check --battery` on a GPU: every pair stands in a case, and with its kernels compiled it takes under a minute."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.gpu
ROOT = Path(__file__).resolve().parents[2]


def test_every_pair_of_flash_is_right_and_the_second_time_takes_under_a_minute(tmp_path):
    took = []
    for _ in range(2):
        start = time.perf_counter()
        ran = subprocess.run(
            [sys.executable, "-m", "gradprobe", "check", "flash", "--battery", "--json", "all.json"], cwd=tmp_path,
            capture_output=True, text=True, timeout=1800, check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        )  # fmt: skip
        took.append(time.perf_counter() - start)
        print(took, ran.stdout[-4000:], ran.stderr[-2000:])
    document = json.loads((tmp_path / "all.json").read_text())
    assert (ran.returncode, document["verdict"]) == (0, "match")
    assert (document["coverage"]["strength"], document["coverage"]["missing"]) == (2, 0)
    assert document["planned"] > 60
    assert took[1] < 60
