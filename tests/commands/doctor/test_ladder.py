"""The rungs of a target: from the simplest up, dO first of what is moved, and never beyond what is given."""

import pytest

from gradprobe.commands.doctor.ladder import (
    TargetTraits,
    refuse_set,
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
    found = rungs(SOFTMAX, seqlen=128, heads=4, kv_heads=2, batch=1, dtype="float16", head_dim=64)
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
