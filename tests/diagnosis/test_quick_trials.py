"""A single program of a small case tells which edits make less wrong, and those of which it tells nothing."""

import time

import pytest

from gradprobe.diagnosis.cases import Trial
from gradprobe.diagnosis.edits.judge import EditedTarget
from gradprobe.runtime.backend import prepare_backend
from gradprobe.source.kernel_file import KernelFile
from gradprobe.source.rewrites.candidate import Candidate
from gradprobe.source.syntax import Edit
from tests.diagnosis.test_edits import EXAMPLE, experiment_on

EDITS = {
    "the one that mends it": ("stride_dob + h * stride_oh", "stride_dob + h * stride_doh", True),
    "one that changes no result": ("tl.sum(o * do, axis=1)", "tl.sum(do * o, axis=1)", False),
    "one that makes more wrong": ("tl.sum(o * do, axis=1)", "tl.sum(o + do, axis=1)", False),
    "one that reads far outside": ("h * stride_oh", "h * stride_oh * 1000000000", False),
    "one that never ends": ("    do_ptr +=", "    while h == h:\n        pass\n    do_ptr +=", False),
    "one that raises": ("tl.sum(o * do, axis=1)", "tl.sum(o * nothing, axis=1)", False),
    "one that is no Python": ("tl.sum(o * do, axis=1)", "tl.sum(o * do, axis=1", None),
    "one of host code": ("*do.stride()", "*o.stride()", None),
}  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def interpreted():
    prepare_backend("auto")


def trials_in(folder, faults, layout="distinct", text=EXAMPLE):
    from gradprobe.diagnosis.edits.quick_trials import QuickTrials  # imports Triton

    experiment = experiment_on(folder, text)
    file = KernelFile(f"{folder}/delta.py", text)
    target = EditedTarget(experiment, Candidate(file, (), 0.0), file.path, [])
    trial = Trial(experiment.case, (("all", layout),))
    return QuickTrials(target, trial, [file], faults), file


@pytest.fixture(scope="module")
def trials(tmp_path_factory):
    faults = {}
    # Before the forks: of what never ends 10 s are asked for.
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("gradprobe.diagnosis.edits.quick_trials._SECONDS", 2.0)
        quick, file = trials_in(tmp_path_factory.mktemp("quick"), faults)
    yield quick, file
    quick.close()
    assert faults == {}


def edit_of(name):
    old, new, _ = EDITS[name]
    at = EXAMPLE.index(old)
    return (Edit(at, at + len(old), new),)


@pytest.mark.parametrize("name", EDITS)
def test_an_edit_is_better_where_a_program_leaves_less_wrong(trials, name):
    quick, file = trials
    answer = quick.ask(file, edit_of(name), time.monotonic() + 60)()
    assert (answer and answer[0]) is EDITS[name][2]


def test_nothing_can_be_mended_in_a_launch_that_has_all_right(tmp_path):
    quick, file = trials_in(tmp_path, {}, "contiguous")
    assert quick.ask(file, edit_of("the one that mends it"), time.monotonic() + 60)()[0] is False
    quick.close()


def test_what_goes_wrong_in_gradprobe_itself_comes_to_light(tmp_path, monkeypatch):
    monkeypatch.setattr("gradprobe.diagnosis.edits.quick_trials._codes", lambda *_: 1 / 0)
    faults = {}
    quick, file = trials_in(tmp_path, faults)
    assert quick.ask(file, (), time.monotonic() + 60)() is None
    quick.close()
    assert list(faults) == ["ZeroDivisionError: division by zero"]


def test_a_target_in_inference_mode_is_replayed_too(tmp_path):
    text, faults = EXAMPLE.replace("def delta(", "@torch.inference_mode()\ndef delta("), {}
    quick, file = trials_in(tmp_path, faults, text=text)
    old, new, is_better = EDITS["the one that mends it"]
    at = text.index(old)
    answer = quick.ask(file, (Edit(at, at + len(old), new),), time.monotonic() + 60)()
    quick.close()
    assert answer is not None
    assert (answer[0], faults) == (is_better, {})
