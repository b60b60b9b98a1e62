"""What it is to fail in the same way."""

from dataclasses import replace

from gradprobe.commands.shrink.symptom import CRASH, IDENTITY, NAN, NUMBERS, Symptom, TriedCase

LARGE = Symptom(
    NUMBERS, "dP", ("dP", "dV", "dBias"), ("P", "dP", "dS", "dV", "dBias"), heads=4, spares_head_0=True
)  # fmt: skip


def test_the_same_intermediates_must_be_wrong_by_themselves_as_far_as_they_exist_and_first():
    assert LARGE.is_like(LARGE)
    assert not replace(LARGE, first="dS").is_like(LARGE)
    assert not replace(LARGE, kind=NAN).is_like(LARGE)
    without_bias = replace(LARGE, own=("dP", "dV"), exposed=("P", "dP", "dS", "dV"))
    assert without_bias.is_like(LARGE)
    assert not replace(LARGE, own=("dP", "dV")).is_like(LARGE)
    assert not replace(LARGE, own=("dP", "dS", "dV", "dBias")).is_like(LARGE)


def test_head_0_stays_right_as_long_as_there_are_others():
    assert replace(LARGE, heads=2).is_like(LARGE)
    assert not replace(LARGE, heads=2, spares_head_0=False).is_like(LARGE)
    assert replace(LARGE, heads=1, spares_head_0=False).is_like(LARGE)


def test_a_cause_that_is_named_must_be_named_again_and_one_that_is_not_may_be():
    named = replace(LARGE, fault="stride/do-head")
    assert named.is_named_like(named)
    assert not LARGE.is_named_like(named)
    assert not replace(LARGE, fault="stride/do-row").is_named_like(named)
    assert named.is_named_like(LARGE)
    # A small case that another cause explains as well is still the same.
    assert replace(LARGE, fault="layout/do", alike=("stride/do-head",)).is_named_like(named)
    assert not replace(LARGE, fault="layout/do", alike=("stride/do-row",)).is_named_like(named)


def test_a_try_says_what_it_came_to():
    assert TriedCase(None).sentence == "it matches"
    assert TriedCase(None, "q must be 64 wide").sentence == "it does not run: q must be 64 wide"
    assert TriedCase(LARGE).sentence == (
        "it fails in another way: dP first, wrong numbers; by itself too: dV, dBias; head 0 is right"
    )
    assert Symptom(IDENTITY, "I8").sentence == "identity: I8"
    assert Symptom(CRASH, CRASH).sentence == "the process that runs the target ends"
