"""Two faults at once: both are named, each by what it spoils."""

import pytest

from tests.faults.plain import EVERYTHING, GRADIENTS, Planted, of_head_0, told


def read(kernel, name, tensor):
    return of_head_0(tensor) if name == "do" and kernel in ("preprocess", "dq") else tensor


@pytest.mark.parametrize("exposed", [EVERYTHING, GRADIENTS], ids=["exposed", "black box"])
def test_a_misread_do_and_a_doubled_dv_are_told_apart(exposed):
    planted = Planted(
        read=read, make=lambda kernel, name, tensor: tensor * 2 if name == "dV" else tensor
    )
    first, second, *_ = told(planted, exposed=exposed, batch=1, causal=True).diagnoses
    assert {first.fault, second.fault} == {"index/do-head", "factor/dV"}
    assert (first.explained, second.explained, second.also) == (1.0, 1.0, True)


@pytest.mark.nightly
def test_one_fault_in_two_kernels_of_three_is_named_once():
    report = told(Planted(read=read), exposed=GRADIENTS, causal=True)
    assert report.diagnoses[0].fault == "index/do-head"
    assert report.diagnoses[0].explained == 1.0
    assert not any(one.also for one in report.diagnoses)
