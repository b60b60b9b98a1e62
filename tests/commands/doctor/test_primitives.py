"""Primitives in Triton's interpreter: right as it is, and each found where it is broken."""

import pytest
import torch
from triton.runtime import interpreter as shipped

from gradprobe.commands.doctor.primitives import run_primitive

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="Triton interprets nothing in this process"
)

DOTS = ("dots:float32:ieee", "dots:float16:ieee", "dots:bfloat16:ieee")


@pytest.mark.parametrize("name", ["add_one", "add_strided", *DOTS])
def test_what_is_right_is_green(name):
    assert run_primitive(name, False, "cpu") == ""


def test_one_lost_atomic_add_of_a_hundred_is_red(monkeypatch):
    right, calls = shipped.InterpreterBuilder.create_atomic_rmw, []

    def losing(self, *args):
        calls.append(self.grid_idx)
        return right(self, *args) if len(calls) != 70 else args[2]

    monkeypatch.setattr(shipped.InterpreterBuilder, "create_atomic_rmw", losing)
    words = run_primitive("add_one", False, "cpu")
    assert "sums are wrong: " in words
    assert words.endswith("and not 5050")


def test_atomic_adds_that_reach_what_lies_between_are_red(monkeypatch):
    right = shipped.InterpreterBuilder.create_atomic_rmw

    def twice(self, op, ptr, *args):
        beside = shipped.TensorHandle(ptr.data + 4, ptr.dtype)
        right(self, op, beside, *args)
        return right(self, op, ptr, *args)

    monkeypatch.setattr(shipped.InterpreterBuilder, "create_atomic_rmw", twice)
    assert run_primitive("add_strided", False, "cpu") == "it added to memory between its elements"


def test_a_dot_that_is_off_by_a_little_in_one_row_is_red(monkeypatch):
    right = shipped.InterpreterBuilder.create_dot

    def coarse(self, *args):
        made = right(self, *args)
        made.data[3] *= 1 + 2.0**-9
        return made

    monkeypatch.setattr(shipped.InterpreterBuilder, "create_dot", coarse)
    assert "elements are wrong, worst " in run_primitive(DOTS[1], False, "cpu")
