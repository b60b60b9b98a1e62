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
    {fault}
    return {{"dQ": dq, "dK": dk, "dV": dv}}
"""
SMALL = dict(
    batch=1, heads=2, seqlen=20, head_dim=8, recover=False, layouts=(("q", "contiguous"),)
)
FAULTS = {
    "autotune/dQ": "dq = dq * (1 + torch.arange(q.shape[2])[:, None] % 3) if len(CALLS) == 1 else dq",
    "race/dQ": "dq = dq * (1 + torch.rand_like(dq))",
    "unwritten/dQ": "w = torch.empty_like(dq); w[:, :, 3:] = dq[:, :, 3:]; w[:, :, :3] += dq[:, :, :3]; dq = w",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_runs_differ_in_is_named(fault, tmp_path, monkeypatch):
    (tmp_path / "some_kernels.py").write_text(SOURCE.format(fault=FAULTS[fault]))
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    importlib.invalidate_caches()
    case = softmax_case(**SMALL, poison=fault.startswith("unwritten"))
    try:
        named = [
            one
            for one in probe(case, find_target("some_kernels:backward")).diagnoses
            if one.is_named
        ]
    finally:
        sys.modules.pop("some_kernels", None)
    assert fault in [one.fault for one in (named if case.poison else named[:1])]


def test_calls_on_either_side_of_a_bound_differ_in_nothing_that_is_named(monkeypatch):
    comparison = SimpleNamespace(matches=True)
    right = SimpleNamespace(measured=SimpleNamespace(comparison=comparison), actual={})
    monkeypatch.setattr(behaviour, "run_again", lambda *of: right)
    again = SimpleNamespace(
        second=right, experiment=None, assigned=(), seen=right, moved=lambda first, other: {},
        is_right=lambda: True,
    )  # fmt: skip
    assert behaviour.wrong_in_the_first_call_alone(again) is None
