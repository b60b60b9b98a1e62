"""An error of a GPU is no refusal, and one that costs this process its device is told apart by asking the device."""

import pytest
import torch

from gradprobe.commands.suite.checking import Setting, check_each
from gradprobe.commands.suite.interpreted import for_the_interpreter
from gradprobe.commands.suite.plan import PlannedCheck
from gradprobe.inputs.draw import draw
from gradprobe.inputs.history import CheckRequest
from gradprobe.inputs.tensor_layouts import place
from gradprobe.model.failures import DeviceLost
from gradprobe.model.resolution import resolve
from gradprobe.runtime.run import run_target
from gradprobe.targets.find import find_target
from tests.commands.strides.crashing import write

CASE = resolve({"seqlen": 8, "head_dim": 4, "device": "cpu"}, "softmax", takes_bias=False)
DISTINCT = (("all", "distinct"),)


class CUDAError(Exception):
    """As cuda-core has one: no RuntimeError."""


def lose(monkeypatch, words):
    def fail():
        raise RuntimeError(f"{words}\nCompile with ...")

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", fail)


ERRORS = [
    CUDAError("CUDA_ERROR_ASSERT: device-side assert triggered"),
    ValueError("dO must be contiguous"),  # of a wrapper that took the device's error for its own
]


@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_whatever_a_target_raises_once_the_device_is_lost_is_the_loss(monkeypatch, error):
    def backward(q, k, v, do):
        raise error

    lose(monkeypatch, "CUDA error: unspecified launch failure")
    with pytest.raises(DeviceLost, match=r"without its device \(distinct\): CUDA error: "):
        run_target(find_target(backward), CASE, place(draw(CASE), DISTINCT))


def test_what_cost_a_gpu_is_asked_of_the_interpreter_no_larger_than_it_need_be():
    options = {"heads": 32, "kv_heads": 8, "batch": 4, "seqlen": 8229, "head_dim": 128}
    small = for_the_interpreter(CheckRequest("x", None, None, options)).options
    assert small == {
        "heads": 8, "kv_heads": 2, "batch": 2, "seqlen": 165, "head_dim": 128, "device": "cpu"
    }  # fmt: skip


def test_a_check_that_costs_the_device_keeps_what_it_measured_and_names_the_line_that_the_interpreter_sees(
    tmp_path,
):
    options = {"seqlen": 20, "head_dim": 8, "runs": ["contiguous", "huge"]}
    request = CheckRequest(write(tmp_path, "narrow", losing=True), None, None, options)
    (checked,) = check_each([PlannedCheck("", request)], Setting())
    found = checked.code, checked.verdict, checked.report.error.kind
    assert found == (3, "error", "DeviceLost")
    runs = [(run.layout, run.verdict) for run in checked.report.runs]
    assert runs == [("contiguous", "match"), ("huge", "crashed")]
    (finding,) = checked.report.runs[1].memory
    found = finding.kind, finding.tensor, finding.kernel
    assert found == ("outside", "do", "narrow_copy_kernel")
    assert (
        "an illegal memory access was encountered; small in the interpreter narrow_copy_kernel loads outside do"
        in checked.report.error.message
    )
