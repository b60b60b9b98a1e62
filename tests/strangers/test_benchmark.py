"""What the benchmark of other people's kernels calls wrong, placed and mended."""

import difflib
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.planted.planting import file_of

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
pytestmark = pytest.mark.skipif(
    not BENCHMARKS.is_dir(), reason="a checkout alone has the benchmarks"
)


def loaded(name):
    spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules[name]


@pytest.fixture(scope="module")
def strangers():
    yield from loaded("strangers")


@pytest.fixture(scope="module")
def configurations():
    yield from loaded("configurations")


OWN = dict.fromkeys(("contiguous", "distinct"), {"O": [1e-7, 2e-7], "dQ": [1e-7, 1e-7]})


def judged(**of_distinct):
    return {"contiguous": OWN["contiguous"], "distinct": OWN["distinct"] | of_distinct}


@pytest.mark.parametrize(
    ("dense", "verdict"),
    [(judged(O=[1e-7, 2.9e-7]), "same"), (judged(O=[1e-7, 3.1e-7]), "rounding"), (judged(O=[1e-7, 1.7e-6]), "wrong"),
     (judged(O=[1e-7, None]), "wrong"), (judged(dQ=[]), "wrong"), ({"contiguous": OWN["contiguous"]}, "not run")],
)  # fmt: skip
def test_a_fault_is_wrong_by_its_worst_result_in_any_layout(strangers, dense, verdict):
    assert strangers.verdict(dense, OWN) == verdict


def test_the_edit_that_is_taken_is_one_with_which_all_is_said_to_match(strangers):
    text = file_of("one_pass").read_text()
    lines = text.splitlines(keepends=True)
    other = [*lines[:50], "    pass\n", *lines[52:90], *lines[91:]]
    diff = "".join(difflib.unified_diff(lines, other, "a", "b"))
    none, all_match = ({"edit": {"matches": matches, "diff": diff}} for matches in (False, True))
    told = {"diagnoses": [{"edit": None}, none, all_match]}
    assert strangers.mended_text(told, text) == "".join(other)
    assert strangers.mended_text({"diagnoses": [none]}, text) is None


@pytest.mark.parametrize(
    ("errors", "dtype", "is_right"),
    [([2e-4], "float32", False), ([2e-4], "float16", True), ([None], "float16", False)],
)
def test_a_configuration_counts_where_the_kernel_itself_is_right(
    configurations, errors, dtype, is_right
):
    words = ["--dtype", dtype]
    assert configurations.is_right({"contiguous": {"O": [1e-7], "dQ": errors}}, words) == is_right
    assert not configurations.is_right({}, words)


DIES = """import os

import torch


def attention(q, k, v):
    if q.shape[2] == 7:
        os.abort()
    return torch.nn.functional.scaled_dot_product_attention(q, k, v)
"""


@pytest.mark.nightly
def test_a_configuration_in_which_a_kernel_dies_ends_no_other(tmp_path):
    (tmp_path / "mine.py").write_text(DIES)
    each = [["--seqlen", rows, "--runs", "contiguous"] for rows in ("7", "8")]
    (tmp_path / "given").write_text(json.dumps(each))
    words = [tmp_path / "out", "--each", tmp_path / "given", f"{tmp_path}/mine.py:attention"]
    command = [sys.executable, BENCHMARKS / "judge.py", *words]
    subprocess.run(command, capture_output=True, check=True)
    died, ran = json.loads((tmp_path / "out").read_text())
    assert (died, {*ran["contiguous"]}) == ({}, {"O", "dQ", "dK", "dV"})


@pytest.mark.nightly
def test_faults_of_a_kernel_in_a_folder_are_judged_checked_and_told(tmp_path):
    folder = tmp_path / "kernels" / "one-pass"
    folder.mkdir(parents=True)
    (folder / "one_pass.py").write_text(file_of("one_pass").read_text())
    words = "one_pass.py:one_pass --batch 1 --heads 2 --seqlen 20 --head-dim 8 --causal\n"
    (folder / "words").write_text(words)
    words = [folder.parent, "--faults", "2", "--json", tmp_path / "json"]
    command = [sys.executable, BENCHMARKS / "strangers.py", *words]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "one-pass: found 2, " in ended.stdout
    trials = json.loads((tmp_path / "json").read_text())
    assert [trial["found"] for trial in trials if trial["judged"] == "wrong"] == [True, True]
    assert [trial["found"] for trial in trials if trial["judged"] == "same"] == [False]
