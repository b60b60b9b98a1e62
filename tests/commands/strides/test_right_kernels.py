from dataclasses import replace

import pytest
import torch

from tests.commands.strides.benches import bench_for, trials_for

# One tile of 32 rows with a part of it unused: there are many runs.
SIZES = {"batch": 2, "heads": 2, "seqlen": 17, "head_dim": 16, "block_m": 32, "block_n": 32}
CASES = {
    "lazy": ("lazy", {"bias": True, "bias_window": 9}),
    "flash": ("flash", {"causal": True, "bias": True, "bias_axes": "hmn"}),
    "backward": (
        "gradprobe.kernels.triton.flash:flash_backward",
        {"kv_heads": 1, "sinks": True},
    ),
}

on_gpu = "tests/gpu holds what a GPU is asked"
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason=on_gpu)


def test_each_seventh_layout_of_one_batch_is_right():
    found, trials = tried("flash", every=7, batch=1)
    assert len(found) > 8
    assert_right(found)
    # Of every kind: one tensor's layout, all tensors' at once, a program's.
    assert len({trial.tried.kind for trial in trials}) == 3


@pytest.mark.nightly
@pytest.mark.parametrize("case", CASES)
def test_every_layout_of_every_tensor_is_right(case):
    found, trials = tried(case)
    assert len(found) > 60
    assert {"q=huge", "dv=packed", "distinct", "out.sum() of [B, L, H, D] views"} <= found.keys()
    assert_right(found)
    taken = {"lazy": {"bias", "tau"}, "flash": {"bias"}, "backward": {"o", "lse", "sinks"}}
    names = {"q", "k", "v", "do", "dq", "dk", "dv"} | taken[case]
    assert names <= {trial.tried.row for trial in trials}


def tried(case, every=1, **sizes):
    """What came of every trial, or of so many of them, by its title; and the trials."""
    word, options = CASES[case]
    bench = bench_for(word, **SIZES | options | sizes)
    first, *others = trials_for(bench, fast=False).values()
    trials = [first, *others[every // 2 :: every]]
    # Alone each is run once: all at once they are watched, and run with both fills.
    trials = [replace(trial, thorough=trial.tried.kind != "one tensor") for trial in trials]
    return {trial.title: bench.run(trial) for trial in trials}, trials


def assert_right(found):
    wrong = {title: one.error for title, one in found.items() if one.verdict != "match"}
    assert wrong == {}
    assert [stray for result in found.values() for stray in result.memory] == []
