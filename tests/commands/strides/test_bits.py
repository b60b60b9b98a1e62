import torch

from gradprobe.numerics.repeats import differing
from gradprobe.runtime.run import Trace

NAN = float("nan")


def trace(**values):
    tensors = {name: torch.tensor(value) for name, value in values.items()}
    return Trace(tensors, dict.fromkeys(tensors, "exported"))


def test_one_bit_is_a_difference_and_nan_is_equal_to_itself():
    base = trace(dQ=[1.0, NAN], dK=[0.0, 3.0])
    assert differing(trace(dQ=[1.0, NAN], dK=[0.0, 3.0]), base) == ()
    assert differing(trace(dQ=[1.0, 1.0], dK=[0.0, 3.0000002]), base) == ("dQ", "dK")
    assert differing(trace(dQ=[1.0, NAN], dK=[-0.0, 3.0]), base) == ("dK",)
    # What is missing differs.
    assert differing(trace(dK=[1.0]), trace(dQ=[1.0])) == ("dQ",)
