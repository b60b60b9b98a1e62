import numpy as np
import pytest
import torch

from gradprobe.inputs import memory as module
from gradprobe.inputs.memory import Elements, Marks
from gradprobe.model.number import plural

# shape, strides: dense, permuted, gaps, slots, stride 0, axes of size 1, overlapping windows, steps that interlock
VIEWS = [
    ((2, 3, 4), (12, 4, 1)), ((2, 3, 4), (12, 1, 3)), ((2, 3, 4), (40, 13, 3)),
    ((2, 3, 4), (36, 12, 1)), ((2, 3, 4), (0, 4, 1)), ((2, 3, 4), (0, 0, 0)),
    ((2, 1, 4), (5, 999, 1)), ((5, 3), (1, 1)), ((5, 3), (2, 3)), ((), ()),
    ((2, 0, 4), (4, 4, 1)), ((0,), (0,)), ((3, 4), (1 << 26, 7)),
]  # fmt: skip


def offsets_of(shape, strides):
    """Every offset by itself, and the first index that has it."""
    found = {}
    for index in np.ndindex(*shape):
        found.setdefault(sum(i * s for i, s in zip(index, strides, strict=True)), index)
    return found


@pytest.mark.parametrize(("shape", "strides"), VIEWS)
def test_an_offset_is_held_exactly_where_an_index_leads_to_it(shape, strides):
    elements, own = Elements(shape, strides, 4), offsets_of(shape, strides)
    near = sorted({offset + by for offset in [*own, 0] for by in range(-9, 10)})
    held = elements.hold(np.array(near) * 4, 4)
    assert [offset for offset, is_held in zip(near, held, strict=True) if is_held] == sorted(own)
    assert sorted(set(elements.listed().tolist())) == sorted(own)
    assert elements.span == (max(own) + 1 if own else 0)


@pytest.mark.parametrize(("shape", "strides"), VIEWS)
def test_the_index_of_an_offset_leads_back_to_it(shape, strides):
    elements, own = Elements(shape, strides, 4), offsets_of(shape, strides)
    for offset in {offset + by for offset in [*own, 0] for by in range(-9, 10)}:
        index = elements.index(offset)
        assert (index is not None) == (offset in own)
        if index is not None:
            assert sum(i * s for i, s in zip(index, strides, strict=True)) == offset
            assert all(i < n for i, n in zip(index, shape, strict=True))
        elif 0 <= offset < elements.span:
            away = offset - max(each for each in own if each <= offset)
            assert elements.beyond(offset).startswith(f"{plural(away, 'element')} past ")


@pytest.mark.parametrize("width", [1, 2, 4, 8, 16])
def test_an_access_of_another_width_is_held_where_all_of_its_bytes_are_and_it_is_aligned(width):
    elements = Elements((3, 2), (5, 1), 4)
    own = {byte for row in range(3) for byte in range(row * 20, row * 20 + 8)}
    offsets = np.arange(-20, 80)
    held = elements.hold(offsets, width)
    for offset, is_held in zip(offsets.tolist(), held, strict=True):
        aligned = offset % min(width, 4) == 0
        assert bool(is_held) == (aligned and set(range(offset, offset + width)) <= own), offset


def test_an_offset_wraps_where_2_to_the_32_leads_to_one_of_few_elements(monkeypatch):
    elements = Elements((64, 3), ((1 << 27) + 99, 5), 4)
    far, short = 63 * ((1 << 27) + 99) + 5, 15 * ((1 << 27) + 99)
    assert [elements.wrapped(far - (turns << 32)) for turns in (1, 2)] == [(63, 1)] * 2
    assert elements.wrapped(far - (1 << 32) + 1) is None
    assert [elements.wrapped(far), elements.wrapped(far + (1 << 32))] == [None] * 2, (
        "these are no less than its own"
    )
    assert elements.wrapped(short - (1 << 32)) is None, "less than 2^31 fits into 32 bits"
    monkeypatch.setattr(module, "_FEW", 191)
    assert elements.wrapped(far - (1 << 32)) is None


def test_marks_are_those_of_an_array():
    generator = torch.Generator().manual_seed(0)
    marks, expected = Marks(4000, 4), np.zeros(1000, np.int32)
    for mark in range(1, 40):
        units = torch.randint(1000, (50,), generator=generator).numpy()
        expected[units] = mark
        marks.write(units * 4, 4, mark)
        assert (marks.read(np.arange(1000) * 4, 4)[:, 0] == expected).all()
    assert len(set(expected)) > 20
