"""Guard bands tell that they were written, which side, how far off and how many elements."""

import errno
import math

import pytest
import torch

from gradprobe.inputs.guard_bands import FILLS, Breach, Guards, guard_values, guarded, mapped
from gradprobe.inputs.tensor_layouts import place
from gradprobe.model.failures import NoRoom

SHAPE = (2, 3, 5, 4)


def placed(layout, names=("q", "k", "v"), fill="ordinary"):
    values = {name: torch.randn(SHAPE) for name in names}
    return place(values, (("all", layout),), fill=fill).tensors


def flat(tensor):
    return tensor.as_strided((tensor.untyped_storage().nbytes() // tensor.element_size(),), (1,), 0)


@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize("layout", ["contiguous", "distinct", "packed", "blhd", "offset"])
def test_guards_that_nothing_wrote_tell_nothing_and_the_elements_themselves_may_be_written(
    layout, fill
):
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
    last = first + sum((size - 1) * stride for size, stride in zip(SHAPE, k.stride(), strict=True))
    flat(k)[first - 7] = 1.0
    flat(k)[first - 9] = 1.0
    flat(k)[last + 3] = 1.0
    flat(k)[first + 1] = 1.0
    assert k.stride(3) > 1
    assert guards.breaches() == [
        Breach("k", "before", 7, 2),
        Breach("k", "between", 1, 1),
        Breach("k", "after", 3, 1),
    ]


def test_a_store_behind_packed_tensors_is_told_beside_the_one_that_ends_last():
    tensors = placed("packed")
    guards = Guards(tensors)
    v = tensors["v"]
    last = v.storage_offset() + sum(
        (size - 1) * stride for size, stride in zip(SHAPE, v.stride(), strict=True)
    )
    flat(v)[last + 1] = 1.0
    assert guards.breaches() == [Breach("v", "after", 1, 1)]


def test_a_store_of_the_number_that_stood_there_changes_nothing_and_one_of_another_nan_does():
    tensors = placed("contiguous", fill="nan")
    guards = Guards(tensors, "nan")
    q = tensors["q"]
    flat(q)[0] = float("nan")
    assert guards.breaches() == []
    flat(q).view(torch.int32)[0] ^= 1
    assert [breach.side for breach in guards.breaches()] == ["before"]


def test_the_words_name_tensor_side_offset_and_count():
    words = Breach("dV", "after", 12, 48).sentence
    assert (
        words
        == "a store outside dV: 48 elements were written, the nearest 12 after its last element"
    )
    assert Breach("q", "before", 1, 1).sentence.startswith(
        "a store outside q: 1 element was written, the nearest 1 before"
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_nan_guards_are_nan_and_large_ones_finite_and_far_above_any_value(dtype):
    assert guard_values(100, dtype, torch.device("cpu"), "nan").isnan().all()
    large = guard_values(5000, dtype, torch.device("cpu"), "large").double().abs()
    assert math.isfinite(large.max())
    assert large.min() >= 4090


@pytest.mark.parametrize("dtype", [torch.int32, torch.bool])
def test_guards_of_whole_numbers_and_booleans_are_ordinary_in_every_fill(dtype):
    of = [guard_values(64, dtype, torch.device("cpu"), fill) for fill in FILLS]
    assert torch.equal(of[0], of[1])
    assert torch.equal(of[0], of[2])


def test_a_span_without_room_is_told_in_gibibytes_with_what_to_look_at(monkeypatch):
    def refusing(*_, **__):
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr("mmap.mmap", refusing)
    with pytest.raises(
        NoRoom,
        match=r"span 16 GiB has no room here: Cannot allocate memory; is address space limited",
    ):
        mapped(2**32, torch.float32)


def test_a_tensor_on_a_gpu_has_room_in_half_of_what_is_free_there_or_in_what_is_told(monkeypatch):
    free = {
        "mem_get_info": (6 << 30, 80 << 30),
        "memory_reserved": 2 << 30,
        "memory_allocated": 1 << 30,
    }
    for name, value in free.items():
        monkeypatch.setattr(torch.cuda, name, lambda device, value=value: value)
    gpu = torch.device("cuda")
    with pytest.raises(NoRoom, match=r"takes 3\.5 GiB .* on cuda: 3\.0 GiB are left of 4\.0 GiB"):
        guarded(7 << 28, torch.float16, gpu, "nan", 1 << 40)
    monkeypatch.setenv("GRADPROBE_MAX_MEMORY", "2G")
    with pytest.raises(NoRoom, match=r"1\.0 GiB are left of 2\.0 GiB \(--max-memory\)"):
        guarded(7 << 28, torch.float16, gpu, "nan", 0)
