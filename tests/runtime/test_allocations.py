import math
from types import SimpleNamespace

import pytest
import torch

from gradprobe.runtime.target_memory import Allocations, AllocationSpread, InputsBefore


class Noting:
    def __init__(self):
        self.told = []

    def allocated(self, tensor, place):
        self.told.append(("allocated", tuple(tensor.shape)))

    def written(self, tensor):
        self.told.append(("written", tuple(tensor.shape)))


def whole(tensor):
    return tensor.as_strided(
        (tensor.untyped_storage().nbytes() // tensor.element_size(),), (1,), 0
    )


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.empty_like(torch.randn(4, 3).t()),
        lambda: torch.randn(2).new_empty(3, 4),
        lambda: torch.empty_strided((3, 4), (1, 3)),
    ],
    ids=["empty_like", "new_empty", "empty_strided"],
)
def test_memory_without_values_holds_the_number_and_keeps_shape_strides_and_dtype(make):
    plain = make()
    with Allocations("large", 7.0) as allocations:
        tensor = make()
    assert (tensor.shape, tensor.stride()) == (plain.shape, plain.stride())
    assert tensor.dtype == plain.dtype
    assert bool((tensor == 7.0).all())
    assert tensor.untyped_storage().nbytes() >= 2 * 1024 * 4
    assert allocations.breaches({}) == []


def test_zeros_and_ones_keep_their_values_and_results_of_operations_are_left_alone():
    with Allocations("nan", math.nan) as allocations:
        zeros, ones, like = torch.zeros(5), torch.ones(5), torch.zeros_like(torch.randn(5))
        added = zeros + ones
    assert [bool((tensor == number).all()) for tensor, number in ((zeros, 0), (ones, 1), (like, 0), (added, 1))] == [
        True, True, True, True,
    ]  # fmt: skip
    assert len(allocations.made) == 3
    assert added.storage_offset() == 0


def test_a_store_outside_is_told_with_the_name_of_the_result_or_the_line_that_allocated_it():
    with Allocations("nan", math.nan) as allocations:
        named, other = torch.empty(4), torch.zeros(4)
        whole(named)[named.storage_offset() + 4] = 1.0
        whole(other)[other.storage_offset() - 2] = 1.0
    first, second = allocations.breaches({named.untyped_storage().data_ptr(): "dV"})
    found = first.tensor, first.place, first.offset, first.count
    assert found == ("dV", "after its last element", 1, 1)
    assert second.tensor.startswith("the tensor allocated at test_allocations.py:")
    assert (second.place, second.offset) == ("before its first element", 2)


def test_the_register_hears_of_memory_without_values_and_of_what_torch_writes_but_not_of_what_only_moves():
    register = Noting()
    with Allocations("nan", math.nan, register):
        tensor = torch.empty(3)
        torch.zeros(7)
        torch.empty(0).set_(tensor.untyped_storage(), 0, (2,), (1,))
        tensor[1:].fill_(1.0)
        torch.add(torch.ones(3), 1.0, out=tensor)
    assert register.told == [("allocated", (3,)), ("written", (2,)), ("written", (3,))]


def test_an_input_that_was_turned_in_place_is_told_and_turned_back():
    q = torch.arange(6.0).view(2, 3)
    inputs = SimpleNamespace(tensors={"q": q}, values={"q": q.clone()})
    before = InputsBefore(inputs, ())
    assert not before.changes(lambda name: "")
    q.t_()
    (found,) = before.changes(lambda name: "")
    assert "another view after the run: shape [3, 2] with strides [1, 3]" in found.sentence
    before.restore()
    assert q.shape == (2, 3)


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_runs_while_allocations_are_watched_and_gives_the_same_bits(monkeypatch):
    from torch.nn.attention import flex_attention as module

    # Its plain operations have a backward, which PyTorch's check refuses on the CPU.
    monkeypatch.setattr(module, "_validate_device", lambda *_: None)
    mask = module.create_block_mask(lambda b, h, i, j: i >= j, 1, 2, 20, 20, "cpu")
    values = [
        torch.randn(1, 2, 20, 16, generator=torch.Generator().manual_seed(seed))
        for seed in range(4)
    ]

    def gradients():
        *inputs, do = (value.clone().requires_grad_() for value in values)
        return torch.autograd.grad(module.flex_attention(*inputs, block_mask=mask), inputs, do)

    alone = gradients()
    with Allocations("nan", float("nan")) as allocations:
        watched = gradients()
    assert allocations.breaches({}) == []
    assert [bool((one == other).all()) for one, other in zip(watched, alone, strict=True)] == [
        True
    ] * 3


SHAPES = [(2, 3, 5), (2, 3, 5), (4, 6)]


def strides_of(spread, ask):
    with Allocations("nan", 0.0, spread=spread):
        one = torch.empty(SHAPES[0])
        two, alike = torch.zeros(SHAPES[1]), torch.zeros(SHAPES[1])
        three = torch.empty(SHAPES[2])
        ask(one, two, three)
    assert alike.stride() == two.stride()
    return [tuple(each.stride()) for each in (one, two, three)]


def of_rows(one, two, three):
    return one.stride(0), one.stride(1), two.stride(), three.stride(0)


def test_buffers_whose_strides_were_asked_for_are_padded_each_in_its_own_way():
    spread = AllocationSpread()
    assert strides_of(spread, of_rows) == [(15, 5, 1), (15, 5, 1), (6, 1)]
    assert spread.lay()
    assert strides_of(spread, of_rows) == [(79, 21, 1), (143, 37, 1), (54, 1)]


@pytest.mark.parametrize("ask", [lambda *_: None, lambda one, *_: one.view(6, 5).stride(0)])
def test_what_nobody_asks_for_or_only_of_a_view_stays(ask):
    spread = AllocationSpread()
    strides_of(spread, ask)
    assert not spread.lay()
    assert strides_of(spread, ask) == [(15, 5, 1), (15, 5, 1), (6, 1)]
