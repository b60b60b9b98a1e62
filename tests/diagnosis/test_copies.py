"""Copies that host code makes of inputs: their axes, in whatever order, and the index of each of their elements."""

import numpy as np
import pytest
import torch

from gradprobe.inputs.draw import draw
from gradprobe.inputs.memory import elements_of
from gradprobe.numerics.compare import attention_of
from tests.cases import softmax_case

CASE = softmax_case(batch=2, heads=4, kv_heads=2, seqlen=12, head_dim=8)
VALUES = draw(CASE)
SIZES = {letter: CASE.size(letter) for letter in "bhgmnde"}
Q, K = VALUES["q"], VALUES["k"]
COPIES = {
    "bhmd": lambda: Q * 0.5, "bmhd": lambda: Q.transpose(1, 2).contiguous(),
    "(bh)md": lambda: Q.reshape(8, 12, 8).clone(),
    "(bm)hd": lambda: Q.transpose(1, 2).reshape(24, 4, 8).clone(),
    "bm1hd": lambda: Q.transpose(1, 2).unsqueeze(2).contiguous(),
    "bhnd": lambda: K.repeat_interleave(2, 1), "": lambda: torch.rand(2, 4, 12, 8),
}  # fmt: skip


@pytest.mark.parametrize("axes", COPIES)
def test_a_copy_has_the_axes_of_its_input_in_their_order_and_the_index_of_each_element(axes):
    from gradprobe.diagnosis.follow import copied
    from gradprobe.diagnosis.roles import Roles
    from gradprobe.frontends.triton.interpreter.dataflow.lanes import indices_at

    copy = COPIES[axes]()
    assert copied(copy, VALUES, Roles(CASE, attention_of(CASE, VALUES), VALUES)) == axes
    if axes:
        found = indices_at(elements_of(copy), axes, SIZES, np.arange(copy.numel()))
        b, d = found["b"], found["d"]
        own = (
            K[b, found["g"], found["n"], d] if axes == "bhnd" else Q[b, found["h"], found["m"], d]
        )
        assert torch.equal(own * (0.5 if axes == "bhmd" else 1.0), copy.flatten())


def test_what_answers_to_no_name_has_no_lines_behind_it():
    from gradprobe.frontends.triton.interpreter.dataflow.accesses import lines_behind

    class Fields:
        def __getattr__(self, name):
            raise ValueError(f"{name!r} is not in list")

    assert lines_behind(Fields(), [Fields(), None], 3) == frozenset()
