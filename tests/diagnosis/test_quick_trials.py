"""A single program of a small case tells which edits make less wrong, and those of which it tells nothing."""

import time
from dataclasses import replace
from functools import partial

import pytest

from gradprobe.diagnosis.edits import quick_trials
from gradprobe.diagnosis.edits.quick_trials import QuickTrials
from gradprobe.source.kernel_file import KernelFile
from gradprobe.source.text import Edit
from tests.diagnosis.test_edits import EXAMPLE, experiment_on

EDITS = {
    "the one that mends it": ("stride_dob + h * stride_oh", "stride_dob + h * stride_doh", True),
    "one that changes no result": ("tl.sum(o * do, axis=1)", "tl.sum(do * o, axis=1)", False),
    "one that makes more wrong": ("tl.sum(o * do, axis=1)", "tl.sum(o + do, axis=1)", False),
    "one that reads far outside": ("h * stride_oh", "h * stride_oh * 1000000000", False),
    "one that never ends": (
        "    do_ptr +=",
        "    while h == h:\n        pass\n    do_ptr +=",
        False,
    ),
    "one that raises": ("tl.sum(o * do, axis=1)", "tl.sum(o * nothing, axis=1)", False),
    "one that is no Python": ("tl.sum(o * do, axis=1)", "tl.sum(o * do, axis=1", False),
    "one of host code": ("*do.stride()", "*o.stride()", None),
}


def trials_in(folder, faults):
    experiment = experiment_on(folder, EXAMPLE)
    file = KernelFile(f"{folder}/delta.py", EXAMPLE)
    return QuickTrials(
        partial(_of_layout, experiment), (), {file.file: (file, file.file)}, faults
    ), file


@pytest.fixture(scope="module")
def trials(tmp_path_factory):
    faults = {}
    quick, file = trials_in(tmp_path_factory.mktemp("quick"), faults)
    yield quick, file
    quick.close()
    assert faults == {}


def _of_layout(experiment):
    return replace(experiment, case=replace(experiment.case, layouts=(("all", "distinct"),)))


@pytest.mark.parametrize("name", EDITS)
def test_an_edit_is_better_where_a_program_leaves_less_wrong(trials, name):
    quick, file = trials
    old, new, is_better = EDITS[name]
    at = EXAMPLE.index(old)
    answer = quick.ask(file, (Edit(at, at + len(old), new),), time.monotonic() + 60)()
    assert (answer and answer[0]) is is_better


def test_what_goes_wrong_in_gradprobe_itself_comes_to_light(tmp_path, monkeypatch):
    monkeypatch.setattr(quick_trials._RecordedCase, "tried", lambda *_: 1 / 0)
    faults = {}
    quick, file = trials_in(tmp_path, faults)
    assert quick.ask(file, (), time.monotonic() + 60)() is None
    quick.close()
    assert list(faults) == ["ZeroDivisionError: division by zero"]
