"""What no reference predicts is found by running the target again: a first call, unwritten memory."""

import importlib
import sys
from types import SimpleNamespace

import pytest

from gradprobe.diagnosis import behaviour
from gradprobe.targets.find import find_target
from tests.cases import softmax_case
from tests.probe import probe

SOURCE = """
import torch

CALLS = []


def backward(q, k, v, do, *, scale):
    CALLS.append(1)
    q, k, v = (tensor.detach().clone().requires_grad_() for tensor in (q, k, v))
    o = torch.softmax(scale * q @ k.mT, -1) @ v
    dq, dk, dv = torch.autograd.grad(o, (q, k, v), do)
    rows = 1 + torch.arange(q.shape[2])[:, None] % 3
    {fault}
    return {{"dQ": dq, "dK": dk, "dV": dv}}
"""
SMALL = {
    "batch": 1,
    "heads": 2,
    "seqlen": 20,
    "head_dim": 8,
    "recover": False,
    "layouts": (("q", "contiguous"),),
}
ODD = "dq = dq * rows"


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Writes the module of the target into a folder, and forgets what was imported of it."""

    def write(folder, fault):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "some_kernels.py").write_text(SOURCE.format(fault=fault))
        monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / folder)])
        importlib.invalidate_caches()

    yield write
    sys.modules.pop("some_kernels", None)


def told(**options):
    return probe(softmax_case(**SMALL, **options), find_target("some_kernels:backward"))


def test_a_first_call_that_is_wrong_alone_is_named(module):
    module("one", "dq = dq * rows if len(CALLS) == 1 else dq")
    cause = told().diagnoses[0]
    assert (cause.fault, cause.is_named) == ("autotune/dQ", True)


def test_calls_on_either_side_of_a_bound_differ_in_nothing_that_is_named(monkeypatch):
    right = SimpleNamespace(
        measured=SimpleNamespace(comparison=SimpleNamespace(matches=True)), actual={}
    )
    monkeypatch.setattr(behaviour, "run_again", lambda *of: right)
    moved, is_right = lambda first, other: {}, lambda: True
    again = SimpleNamespace(
        second=right, experiment=None, assigned=(), seen=right, moved=moved, is_right=is_right
    )
    assert behaviour.wrong_in_the_first_call_alone(again) is None


def test_results_that_differ_from_call_to_call_are_named(module):
    module("one", "dq = dq * (1 + torch.rand_like(dq))")
    cause = told().diagnoses[0]
    assert (cause.fault, cause.is_named) == ("race/dQ", True)


def test_memory_that_nobody_wrote_is_named(module):
    module(
        "one",
        "whole = torch.empty_like(dq); whole[:, :, 3:] = dq[:, :, 3:]; whole[:, :, :3] += dq[:, :, :3]; dq = whole",
    )
    cause = next(one for one in told(poison=True).diagnoses if one.fault == "unwritten/dQ")
    assert cause.is_named
