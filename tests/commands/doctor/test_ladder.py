"""The rungs of a target: from the simplest up, dO first of what is moved, and never beyond what is given."""

import re

import pytest
import torch
from triton.runtime import interpreter as shipped

from gradprobe.commands.doctor.climber import run_primitive
from gradprobe.commands.doctor.ladder import INTERPRETED, machine_rungs, refuse_set, target_rungs
from gradprobe.commands.suite.plan import TargetSignature
from gradprobe.inputs.history import CheckRequest
from gradprobe.inputs.options import parse
from gradprobe.model.failures import UsageFailure

SOFTMAX = TargetSignature("softmax", frozenset({"q", "k", "v", "mask", "scale"}), frozenset())
LAZY = TargetSignature("lazy", frozenset({"q", "k", "v", "do", "bias", "tau"}), frozenset())


def rungs(takes, **options):
    return target_rungs(CheckRequest("a.py:f", None, None, options), takes)


def test_heads_then_lengths_then_one_tensor_at_a_time_with_do_first():
    found = rungs(SOFTMAX)
    assert [rung.title for rung in found] == [
        "1 head, 128 long", "2 heads, 128 long", "2 heads, 384 long", "2 heads, 161 long",
        "2 heads, dO moved", "2 heads, q moved", "2 heads, k moved", "2 heads, v moved",
        "2 heads, dO expanded", "2 heads, all moved, no unit stride", "2 batches, all moved",
        "the case of gradprobe check",
    ]  # fmt: skip
    assert [rung.request.options["seqlen"] for rung in found[:4]] == [128, 128, 384, 161]
    assert [rung.title for rung in rungs(None)] == ["the case of gradprobe check"]


def test_the_lazy_family_has_one_tau_and_a_long_bias_below_those_of_its_case():
    by_title = {rung.title: rung.request.options for rung in rungs(LAZY)}
    assert by_title["2 heads, dO moved"]["tau"] == "-0.5"
    assert by_title["2 heads, bias moved"]["bias_window"] >= 384
    assert "tau" not in by_title["the case of gradprobe check"]
    found = rungs(LAZY, tau="-0.5,0.25", seqlens="20,12", batch=2)
    assert [rung.request.options["tau"] for rung in found[:2]] == ["-0.5", "-0.5,0.25"]
    assert {rung.request.options["batch"] for rung in found} == {2}


def test_what_is_given_stays_and_rungs_that_are_the_same_stand_once():
    given = {"seqlen": 128, "heads": 4, "kv_heads": 2, "batch": 1, "head_dim": 64}
    found = rungs(SOFTMAX, dtype="float16", **given)
    assert [rung.title for rung in found][:3] == ["1 head", "4 heads", "4 heads, dO moved"]
    assert not [rung.title for rung in found if "long" in rung.title or "batches" in rung.title]
    assert {rung.request.options["seqlen"] for rung in found} == {128}
    assert [rung.request.options["kv_heads"] for rung in found[:2]] == [1, 2]
    for rung in found:
        parse(rung.request.options)


def test_an_option_that_the_rungs_set_is_refused_with_a_way_out():
    words = "--layout q=packed: the rungs of doctor set it"
    with pytest.raises(UsageFailure, match=words) as refused:
        refuse_set(CheckRequest("a.py:f", None, None, {"layout": ["q=packed"]}))
    assert refused.value.way_out == "gradprobe check takes --layout"


interpreted = pytest.mark.skipif(
    torch.cuda.is_available(), reason="Triton interprets nothing in this process"
)
PRIMITIVES = [rung for rung in machine_rungs(INTERPRETED, "cpu") if rung.is_primitive]


@interpreted
@pytest.mark.parametrize("rung", PRIMITIVES, ids=lambda rung: rung.title)
def test_what_is_right_is_green(rung):
    assert run_primitive(rung.request) == ""


def losing_one_add(right):
    calls = []

    def losing(self, *args):
        calls.append(self.grid_idx)
        return right(self, *args) if len(calls) != 70 else args[2]

    return losing


def adding_beside(right):
    def twice(self, op, ptr, *args):
        right(self, op, shipped.TensorHandle(ptr.data + 4, ptr.dtype), *args)
        return right(self, op, ptr, *args)

    return twice


def off_by_a_little(right):
    def coarse(self, *args):
        made = right(self, *args)
        made.data[3] *= 1 + 2.0**-16
        return made

    return coarse


FAULTS = [
    ("create_atomic_rmw", losing_one_add, 0, "sums are wrong: .* and not 5050"),
    ("create_atomic_rmw", adding_beside, 1, "it added to memory between its elements"),
    ("create_dot", off_by_a_little, 3, "elements are wrong, worst "),
]


@interpreted
@pytest.mark.parametrize(("operation", "fault", "at", "words"), FAULTS)
def test_an_operation_that_is_a_little_wrong_is_red(monkeypatch, operation, fault, at, words):
    right = getattr(shipped.InterpreterBuilder, operation)
    monkeypatch.setattr(shipped.InterpreterBuilder, operation, fault(right))
    assert re.search(words, run_primitive(PRIMITIVES[at].request))
