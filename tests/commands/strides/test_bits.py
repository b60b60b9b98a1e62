"""Runs agree to the bit, or within what repeats of one run differ by."""

import torch

from gradprobe.numerics.repeats import differing, floors
from gradprobe.runtime.run import Trace

NAN = float("nan")


def trace(**values):
    tensors = {name: torch.tensor(value) for name, value in values.items()}
    return Trace(tensors, dict.fromkeys(tensors, "exported"))


def test_one_bit_is_a_difference_and_nan_is_equal_to_itself():
    base, none = trace(dQ=[1.0, NAN], dK=[0.0, 3.0]), {"dQ": 0.0, "dK": 0.0}
    assert differing(trace(dQ=[1.0, NAN], dK=[0.0, 3.0]), base, none) == ()
    assert differing(trace(dQ=[1.0, 1.0], dK=[0.0, 3.0000002]), base, none) == ("dQ", "dK")
    assert differing(trace(dQ=[1.0, NAN], dK=[-0.0, 3.0]), base, none) == ("dK",)
    # What is missing differs.
    assert differing(trace(dK=[1.0]), trace(dQ=[1.0]), {"dQ": 1.0}) == ("dQ",)


def test_where_repeats_differ_a_few_times_that_is_no_difference_and_more_is():
    repeats = [trace(dQ=[1.0, 2.0], dK=[1.0, 2.0]), trace(dQ=[1.0, 2.25], dK=[1.0, 2.0])]
    allowed = floors(repeats)
    assert allowed == {"dQ": 0.25, "dK": 0.0}
    assert differing(trace(dQ=[2.0, 1.0], dK=[1.0, 2.0]), repeats[0], allowed) == ()
    assert differing(trace(dQ=[2.25, 1.0], dK=[1.0, 2.0]), repeats[0], allowed) == ("dQ",)
    assert differing(trace(dQ=[NAN, 1.0], dK=[1.0, 2.0]), repeats[0], allowed) == ("dQ",)
