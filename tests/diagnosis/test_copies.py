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
COPIES = {
    "bhmd": lambda: VALUES["q"] * 0.5,
    "bmhd": lambda: VALUES["q"].transpose(1, 2).contiguous(),
    "(bh)md": lambda: VALUES["q"].reshape(8, 12, 8).clone(),
    "(bm)hd": lambda: VALUES["q"].transpose(1, 2).reshape(24, 4, 8).clone(),
    "bm1hd": lambda: VALUES["q"].transpose(1, 2).unsqueeze(2).contiguous(),
    "bhnd": lambda: VALUES["k"].repeat_interleave(2, 1),
    "": lambda: torch.rand(2, 4, 12, 8),
}


@pytest.mark.parametrize("axes", COPIES)
def test_a_copy_has_the_axes_of_its_input_in_their_order(axes):
    from gradprobe.diagnosis.follow import copied
    from gradprobe.diagnosis.roles import Roles

    roles = Roles(CASE, attention_of(CASE, VALUES), VALUES)
    assert copied(COPIES[axes](), VALUES, roles) == axes


@pytest.mark.parametrize("axes", [axes for axes in COPIES if axes])
def test_each_element_of_a_copy_has_the_index_of_what_it_is_a_copy_of(axes):
    from gradprobe.frontends.triton.interpreter.dataflow.lanes import indices_at

    copy = COPIES[axes]()
    found = indices_at(elements_of(copy), axes, SIZES, np.arange(copy.numel()))
    if axes == "bhnd":
        own = VALUES["k"][found["b"], found["g"], found["n"], found["d"]]
    else:
        own = VALUES["q"][found["b"], found["h"], found["m"], found["d"]]
    assert torch.equal(own * (0.5 if axes == "bhmd" else 1.0), copy.flatten())


def test_what_answers_to_no_name_has_no_lines_behind_it():
    from gradprobe.frontends.triton.interpreter.dataflow.accesses import lines_behind

    class Fields:
        def __getattr__(self, name):
            raise ValueError(f"{name!r} is not in list")

    assert lines_behind(Fields(), [Fields(), None], 3) == frozenset()
