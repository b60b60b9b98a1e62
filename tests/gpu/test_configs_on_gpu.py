"""On a GPU each configuration of an autotuned kernel is compiled, run and judged where all are asked for."""

import json

import pytest

from tests.cli.command import run
from tests.pipeline.test_configs import SMALL, WRITTEN

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tuned.py").write_text(WRITTEN)


def runs_of(word):
    ran = run(f"check tuned.py:{word} {SMALL} --device cuda --configs all --json -")
    report = json.loads(ran.out)
    return ran.code, report["notes"], {one["layout"]: one["verdict"] for one in report["runs"]}


def test_the_configuration_that_misses_a_tail_is_named_and_one_that_does_not_compile_is_left_out():
    code, notes, runs = runs_of("misses_a_tail")
    wrong = [name for name, verdict in runs.items() if verdict == "mismatch"]
    assert code == 1
    assert len(wrong) == 1
    assert wrong[0].startswith("contiguous, delta_kernel with configuration 2 of 3 (BLOCK=32")
    assert "delta_kernel: configuration 3 of 3 does not fit" in notes


def test_a_right_kernel_matches_in_each():
    code, _, runs = runs_of("right")
    assert (code, list(runs.values())) == (0, ["match", "match"])
