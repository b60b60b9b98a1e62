"""What a target allocates is laid apart along the axes of which it asks for strides."""

import pytest
import torch

from gradprobe.runtime.target_memory import Allocations, AllocationSpread

SHAPES = [(2, 3, 5), (2, 3, 5), (4, 6)]


def made(spread, ask):
    with Allocations("nan", 0.0, spread=spread), spread.asking():
        one = torch.empty(SHAPES[0])
        two = torch.zeros(SHAPES[1])
        three = torch.empty(SHAPES[2])
        ask(one, two, three)
    return [tuple(each.stride()) for each in (one, two, three)]


def of_rows(one, two, three):
    return one.stride(0), one.stride(1), two.stride(), three.stride(0)


def test_buffers_are_padded_each_in_its_own_way():
    spread = AllocationSpread()
    assert made(spread, of_rows) == [(15, 5, 1), (15, 5, 1), (6, 1)]
    assert spread.lay()
    one, two, three = made(spread, of_rows)
    assert (one, two, three) == ((79, 21, 1), (143, 37, 1), (54, 1))


@pytest.mark.parametrize("ask", [lambda *_: None, lambda one, *_: one.view(6, 5).stride(0)])
def test_what_nobody_asks_for_or_only_of_a_view_stays(ask):
    spread = AllocationSpread()
    made(spread, ask)
    assert not spread.lay()
    assert made(spread, ask) == [(15, 5, 1), (15, 5, 1), (6, 1)]
