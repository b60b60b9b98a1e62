import errno

import pytest
import torch

from gradprobe.inputs.guard_bands import FILLS, Breach, Guards, guarded, mapped
from gradprobe.inputs.tensor_layouts import place
from gradprobe.model.failures import NoRoom

SHAPE = (2, 3, 5, 4)
BEFORE, AFTER = "before its first element", "after its last element"


def placed(layout, names=("q", "k", "v"), fill="ordinary"):
    values = {name: torch.randn(SHAPE) for name in names}
    return place(values, (("all", layout),), fill=fill).tensors


def flat(tensor):
    return tensor.as_strided(
        (tensor.untyped_storage().nbytes() // tensor.element_size(),), (1,), 0
    )


def last_of(tensor):
    extents = zip(SHAPE, tensor.stride(), strict=True)
    return tensor.storage_offset() + sum((size - 1) * stride for size, stride in extents)


@pytest.mark.parametrize("layout", ["contiguous", "distinct", "packed"])
def test_guards_that_nothing_wrote_tell_nothing_and_the_elements_themselves_may_be_written(
    layout,
):
    for fill in FILLS:
        tensors = placed(layout, fill=fill)
        guards = Guards(tensors, fill)
        for tensor in tensors.values():
            tensor.mul_(2)
        assert guards.breaches() == []


@pytest.mark.parametrize("fill", FILLS)
def test_stores_before_after_and_between_are_told_apart_with_their_distance(fill):
    tensors = placed("distinct", fill=fill)
    guards = Guards(tensors, fill)
    k = tensors["k"]
    first = k.storage_offset()
    last = last_of(k)
    flat(k)[[first - 7, first - 9, last + 3, first + 1]] = 1.0
    assert k.stride(3) > 1
    between = "from its first element, between its own"
    sides = [(BEFORE, 7, 2), (between, 1, 1), (AFTER, 3, 1)]
    assert guards.breaches() == [Breach("k", *side) for side in sides]


def test_a_store_of_the_number_that_stood_there_changes_nothing_and_one_of_another_nan_does():
    tensors = placed("contiguous", fill="nan")
    guards = Guards(tensors, "nan")
    q = tensors["q"]
    flat(q)[0] = float("nan")
    assert guards.breaches() == []
    flat(q).view(torch.int32)[[0, last_of(q) + 2]] ^= 1
    sides = [(BEFORE, q.storage_offset(), 1), (AFTER, 2, 1)]
    assert guards.breaches() == [Breach("q", *side) for side in sides]


def test_a_span_without_room_is_told_in_gibibytes_with_what_to_look_at(monkeypatch):
    def refusing(*_, **__):
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr("mmap.mmap", refusing)
    words = r"span 16 GiB has no room here: Cannot allocate memory; is address space limited"
    with pytest.raises(NoRoom, match=words):
        mapped(2**32, torch.float32)


def test_a_tensor_on_a_gpu_has_room_in_half_of_what_is_free_there_or_in_what_is_told(
    monkeypatch,
):
    free = {"memory_reserved": 2 << 30, "memory_allocated": 1 << 30}
    free["mem_get_info"] = 6 << 30, 80 << 30
    for name, value in free.items():
        monkeypatch.setattr(torch.cuda, name, lambda device, value=value: value)
    gpu = torch.device("cuda")
    with pytest.raises(
        NoRoom, match=r"takes 3\.5 GiB .* on cuda: 3\.0 GiB are left of 4\.0 GiB"
    ):
        guarded(7 << 28, torch.float16, gpu, "nan", 1 << 40)
    monkeypatch.setenv("GRADPROBE_MAX_MEMORY", "2G")
    with pytest.raises(NoRoom, match=r"1\.0 GiB are left of 2\.0 GiB \(--max-memory\)"):
        guarded(7 << 28, torch.float16, gpu, "nan", 0)
