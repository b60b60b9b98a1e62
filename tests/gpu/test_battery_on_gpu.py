"""`check --battery` on a GPU: every pair stands in a case, and with its kernels compiled it takes under a minute."""

import json
import time

import pytest

from tests.gpu.commands import gradprobe

pytestmark = pytest.mark.gpu


def test_every_pair_of_flash_is_right_and_the_second_time_takes_under_a_minute(tmp_path):
    for _ in range(2):
        start = time.perf_counter()
        ran = gradprobe("check flash --battery --json all.json", tmp_path, timeout=1800)
        took = time.perf_counter() - start
    document = json.loads((tmp_path / "all.json").read_text())
    assert (ran.returncode, document["verdict"]) == (0, "match")
    assert (document["coverage"]["strength"], document["coverage"]["missing"]) == (2, 0)
    assert document["planned"] > 60
    assert took < 60
