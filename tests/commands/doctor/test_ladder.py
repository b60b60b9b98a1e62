"""The rungs of a target: from the simplest up, dO first of what is moved, and never beyond what is given."""

import pytest
import torch
from triton.runtime import interpreter as shipped

from gradprobe.commands.doctor.ladder import (
    TargetTraits,
    refuse_set,
    run_primitive,
    target_rungs,
)
from gradprobe.inputs.history import CheckRequest
from gradprobe.inputs.options import parse
from gradprobe.model.failures import UsageFailure

SOFTMAX = TargetTraits("softmax", ("q", "k", "v", "do"), 64)
LAZY = TargetTraits("lazy", ("q", "k", "v", "do", "bias", "tau"), 64)


def rungs(built, **options):
    return target_rungs(CheckRequest("a.py:f", None, None, options), built)


def test_heads_then_tiles_of_the_kernel_then_one_tensor_at_a_time_with_do_first():
    found = rungs(SOFTMAX)
    assert [rung.title for rung in found] == [
        "1 head, one tile", "2 heads, one tile", "2 heads, many tiles", "2 heads, a partial tile",
        "2 heads, dO moved", "2 heads, q moved", "2 heads, k moved", "2 heads, v moved",
        "2 heads, dO expanded", "2 heads, all moved, no unit stride", "2 batches, all moved",
        "the case of gradprobe check",
    ]  # fmt: skip
    by_title = {rung.title: rung.request.options for rung in found}
    assert by_title["1 head, one tile"]["seqlen"] == 64
    assert by_title["2 heads, many tiles"]["seqlen"] == 192
    assert by_title["2 heads, a partial tile"]["seqlen"] % 64 == 33


def test_the_lazy_family_has_one_tau_and_a_long_bias_below_those_of_its_case():
    by_title = {rung.title: rung.request.options for rung in rungs(LAZY)}
    assert by_title["2 heads, dO moved"]["tau"] == "-0.5"
    assert (
        by_title["2 heads, dO moved"]["bias_window"] >= by_title["2 heads, many tiles"]["seqlen"]
    )
    assert "tau" not in by_title["the case of gradprobe check"]
    found = rungs(LAZY, tau="-0.5,0.25", seqlens="20,12", batch=2)
    assert [rung.request.options["tau"] for rung in found[:2]] == ["-0.5", "-0.5,0.25"]
    assert {rung.request.options["batch"] for rung in found} == {2}


def test_what_is_given_stays_and_rungs_that_are_the_same_stand_once():
    found = rungs(
        SOFTMAX, seqlen=128, heads=4, kv_heads=2, batch=1, dtype="float16", head_dim=64
    )
    assert [rung.title for rung in found][:3] == ["1 head", "4 heads", "4 heads, dO moved"]
    assert not [rung.title for rung in found if "tile" in rung.title or "batches" in rung.title]
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
DOTS = ("dots:float32:ieee", "dots:float16:ieee", "dots:bfloat16:ieee")


@interpreted
@pytest.mark.parametrize("name", ["add_one", "add_strided", *DOTS])
def test_what_is_right_is_green(name):
    assert run_primitive(name, False, "cpu") == ""


@interpreted
def test_one_lost_atomic_add_of_a_hundred_is_red(monkeypatch):
    right, calls = shipped.InterpreterBuilder.create_atomic_rmw, []

    def losing(self, *args):
        calls.append(self.grid_idx)
        return right(self, *args) if len(calls) != 70 else args[2]

    monkeypatch.setattr(shipped.InterpreterBuilder, "create_atomic_rmw", losing)
    words = run_primitive("add_one", False, "cpu")
    assert "sums are wrong: " in words
    assert words.endswith("and not 5050")


@interpreted
def test_atomic_adds_that_reach_what_lies_between_are_red(monkeypatch):
    right = shipped.InterpreterBuilder.create_atomic_rmw

    def twice(self, op, ptr, *args):
        beside = shipped.TensorHandle(ptr.data + 4, ptr.dtype)
        right(self, op, beside, *args)
        return right(self, op, ptr, *args)

    monkeypatch.setattr(shipped.InterpreterBuilder, "create_atomic_rmw", twice)
    assert (
        run_primitive("add_strided", False, "cpu") == "it added to memory between its elements"
    )


@interpreted
def test_a_dot_that_is_off_by_a_little_in_one_row_is_red(monkeypatch):
    right = shipped.InterpreterBuilder.create_dot

    def coarse(self, *args):
        made = right(self, *args)
        made.data[3] *= 1 + 2.0**-9
        return made

    monkeypatch.setattr(shipped.InterpreterBuilder, "create_dot", coarse)
    assert "elements are wrong, worst " in run_primitive(DOTS[1], False, "cpu")
