"""A published kernel is checked unedited: autotuned, asking for a GPU at its import, with bools, a class."""

import os
import subprocess
import sys

import pytest

from gradprobe.model.failures import UsageFailure
from gradprobe.targets.find import find_target
from tests.cli.command import run
from tests.published.written import edited

SMALL = "--batch 1 --heads 2 --seqlen 40 --head-dim 16 --runs contiguous --no-recover"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "published.py").write_text(edited())
    return tmp_path


def test_an_autograd_function_matches_by_the_names_of_its_forward_and_its_configurations_are_named():
    found = run(f"check published.py:Attention --causal {SMALL}")
    assert (found.code, found.err) == (0, "")
    words = (
        "forward_kernel is autotuned: it ran with the first configuration that fits: BLOCK: 64"
    )
    assert words in " ".join(found.out.split())


def test_a_runtime_bool_decides_the_mask(folder):
    wrong = edited(("v, o, sm_scale, causal, n", "v, o, sm_scale, not causal, n"))
    (folder / "published.py").write_text(wrong)
    found = run(f"check published.py:attention {SMALL}")
    assert (found.code, len(found.first_mismatches)) == (1, 1)


def test_where_no_configuration_fits_the_first_ones_words_are_told(folder):
    (folder / "published.py").write_text(edited(("(16, 32, 64)", "(16, 32)")))
    found = run(f"check published.py:attention {SMALL}")
    assert found.code == 3
    assert "tl.static_assert(BLOCK >= N)" in found.err or "AssertionError" in found.err


def test_a_tensor_that_is_asked_for_on_the_gpu_lies_where_the_others_do(folder):
    made = 'q.new_empty(q.shape, device="cuda:0") + torch.empty(q.shape).cuda() + q.to("cuda")'
    (folder / "published.py").write_text(edited(("o = torch.empty_like(q)", f"o = {made}")))
    found = run(f"check published.py:attention {SMALL}")
    assert (found.code, found.err) == (0, "")


def test_the_word_of_a_class_that_is_no_autograd_function_is_a_usage_error(folder):
    (folder / "plain.py").write_text(
        "class Attention:\n    def apply(self, q, k, v):\n        return q\n"
    )
    with pytest.raises(UsageFailure, match="the class Attention is no torch.autograd.Function"):
        find_target("plain.py:Attention")


@pytest.mark.nightly
def test_the_stand_in_answers_only_while_a_target_is_imported_or_runs():
    script = """
import os
os.environ["TRITON_INTERPRET"] = "1"
from gradprobe.targets.find import find_target
target = find_target("published.py:attention")
import torch, triton
try:
    torch.cuda.get_device_capability()
except (RuntimeError, AssertionError):
    print("torch asks again")
try:
    torch.empty(1, device="cuda")
except (RuntimeError, AssertionError):
    print("there is no GPU again")
try:
    triton.runtime.driver.active
except RuntimeError:
    print("triton asks again")
import sys
print(sys.modules["gradprobe_target_published"].STAGES)
"""
    path = {"PYTHONPATH": os.pathsep.join(sys.path), "CUDA_VISIBLE_DEVICES": ""}
    command, environment = [sys.executable, "-c", script], os.environ | path
    ran = subprocess.run(
        command, capture_output=True, text=True, env=environment, timeout=120, check=True
    )
    said = ["torch asks again", "there is no GPU again", "triton asks again", "3"]
    assert ran.stdout.splitlines() == said, ran.stderr
