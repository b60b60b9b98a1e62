"""Each layout holds the values, with the strides that it names, in guard bands wide enough for any wrong read."""

from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradprobe.inputs.guard_bands import guard_values
from gradprobe.inputs.tensor_layouts import VECTORS, layout_of, place
from gradprobe.model.assignment import LAYOUTS
from tests.sampling import tries

SHAPES = {
    "q": (2, 3, 5, 4), "k": (2, 3, 5, 4), "v": (2, 3, 5, 4), "do": (2, 3, 5, 4), "o": (2, 3, 5, 4),
    "lse": (2, 3, 5), "delta": (2, 3, 5), "bias": (3, 7), "tau": (3,), "seqlens": (2,),
    "dq": (2, 3, 5, 4), "dk": (2, 3, 5, 4), "dv": (2, 3, 5, 4), "dbias": (3, 7), "dtau": (3,), "dsink": (3,),
}  # fmt: skip
GROUPED = SHAPES | {"q": (2, 4, 5, 6), "k": (2, 2, 9, 6), "v": (2, 2, 9, 3), "do": (2, 4, 5, 3)}
GROUPED |= {"o": (2, 4, 5, 3), "dq": (2, 4, 5, 6), "dk": (2, 2, 9, 6), "dv": (2, 2, 9, 3)}
FRONT = 1024
# Those whose storages are small enough to be looked at whole.
FILLED = [layout for layout in LAYOUTS if layout != "huge"]
NEVER_EXPANDED = ("o", "lse", "delta", "seqlens", "dq", "dk", "dv", "dbias", "dtau", "dsink")

# By layout of all tensors and rank: [2, 3, 5, 4], [2, 3, 5], [3, 7] and [3], which stays contiguous.
STRIDES = {
    "contiguous": {4: (60, 20, 4, 1), 3: (15, 5, 1), 2: (7, 1), 1: (1,)},
    "blhd": {4: (60, 4, 12, 1), 3: (15, 1, 3), 2: (1, 3), 1: (1,)},
    "packed": {4: (180, 4, 36, 1), 3: (15, 5, 1), 2: (7, 1), 1: (1,)},
    "expanded": {4: (0, 0, 0, 0), 2: (0, 0), 1: (1,)},
    "strided-last": {4: (120, 40, 8, 2), 3: (30, 10, 2), 2: (14, 2), 1: (1,)},
    "offset": {4: (60, 20, 4, 1), 3: (15, 5, 1), 2: (7, 1), 1: (1,)},
}


def values_of(shapes=SHAPES, dtype=torch.float32):
    """Every element of every tensor a different number, none of them a guard value."""
    start, values = 100, {}
    for name, shape in shapes.items():
        count = torch.Size(shape).numel()
        of_this = torch.int32 if name == "seqlens" else dtype
        values[name] = torch.arange(start, start + count).reshape(shape).to(of_this)
        start += count
    return values


def offsets(tensor):
    """The place in its storage of each element, flat."""
    places = torch.arange(tensor.untyped_storage().nbytes() // tensor.element_size())
    return places.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()).flatten()


def storage_of(tensor):
    return tensor.new_empty(0).set_(tensor.untyped_storage())


@st.composite
def _placed(draw):
    size = st.integers(1, 5)
    batch, kv_heads, group, lq, lk, width, v_width = (draw(size) for _ in range(7))
    if draw(st.booleans()):  # of one shape, so that a buffer may hold them together
        group, lk, v_width = 1, lq, width
    heads = kv_heads * group
    q, do = (batch, heads, lq, width), (batch, heads, lq, v_width)
    k, v = (batch, kv_heads, lk, width), (batch, kv_heads, lk, v_width)
    shapes = {
        "q": q, "k": k, "v": v, "do": do, "o": do, "lse": q[:3], "delta": q[:3], "bias": (heads, lk), "tau": (heads,),
        "seqlens": (batch,), "dq": q, "dk": k, "dv": v, "dbias": (heads, lk), "dtau": (heads,), "dsink": (heads,),
    }  # fmt: skip
    by_name = st.tuples(st.sampled_from(sorted(shapes)), st.sampled_from(FILLED))
    assigned = [("all", draw(st.sampled_from(FILLED))), *draw(st.lists(by_name, max_size=4))]
    dtype = draw(st.sampled_from([torch.float32, torch.float16, torch.bfloat16]))
    return shapes, dtype, tuple(assigned)


@tries(60)
@given(_placed())
def test_every_tensor_holds_its_values_apart_from_all_others_in_known_values(placed):
    shapes, dtype, assigned = placed
    values = values_of(shapes, dtype)
    inputs = place(values, assigned)
    assert tuple(inputs.tensors) == tuple(inputs.values) == tuple(shapes)
    taken = {}
    for name, tensor in inputs.tensors.items():
        assert (tensor.dtype, tensor.shape) == (values[name].dtype, values[name].shape)
        assert torch.equal(tensor, inputs.values[name]), name
        where = offsets(tensor)
        if layout_of(name, assigned) != "expanded":
            assert torch.equal(tensor, values[name]), name
            assert len(where.unique()) == tensor.numel(), name
        whole = torch.ones(len(storage_of(tensor)), dtype=bool)
        outside = taken.setdefault(tensor.untyped_storage().data_ptr(), whole)
        assert outside[where].all(), name
        outside[where] = False
    for tensor in inputs.tensors.values():
        storage, outside = storage_of(tensor), taken[tensor.untyped_storage().data_ptr()]
        assert outside[:FRONT].all()
        assert outside[-1]
        known = guard_values(len(storage), tensor.dtype, tensor.device)
        assert torch.equal(storage[outside], known[outside])


@pytest.mark.parametrize("layout", STRIDES)
def test_the_strides_are_those_that_the_layout_names(layout):
    for name, tensor in place(values_of(), (("all", layout),)).tensors.items():
        kept = layout == "expanded" and name in NEVER_EXPANDED
        assert tensor.stride() == STRIDES["contiguous" if kept else layout][tensor.dim()], name
        if layout == "expanded" and not kept and name not in VECTORS:
            first = 1 if name == "do" else values_of()[name].flatten()[0]
            assert tensor.flatten()[0] == first
        elif layout != "packed":
            assert tensor.storage_offset() == FRONT + (5 if layout == "offset" else 0)


@pytest.mark.parametrize("layout", ["distinct", "distinct-unit"])
def test_distinct_gives_each_axis_of_each_tensor_a_stride_that_no_other_has(layout):
    tensors = place(values_of(GROUPED), (("all", layout),)).tensors
    assert {tensors[name].stride() for name in GROUPED if name in VECTORS} == {(1,)}
    wide = [tensor for name, tensor in tensors.items() if name not in VECTORS]
    last = None if layout == "distinct" else -1
    strides = [stride for tensor in wide for stride in tensor.stride()[:last]]
    assert len(strides) == len(set(strides))
    assert min(strides) > 1
    assert last is None or {tensor.stride(-1) for tensor in wide} == {1}


def sharing(tensors, *names):
    """The names that lie in one storage with the first of them and no other tensor."""
    places = {name: tensor.untyped_storage().data_ptr() for name, tensor in tensors.items()}
    return {name for name in tensors if places[name] == places[names[0]]} == set(names)


@pytest.mark.parametrize("names", [("q", "k", "v"), ("dk", "dv")], ids=" ".join)
def test_packed_tensors_are_the_slots_of_one_storage(names):
    alone = tuple((name, "packed") for name in names)
    tensors = place(values_of(), alone).tensors
    assert sharing(tensors, *names)
    found = [(tensors[name].storage_offset() - FRONT, tensors[name].stride()) for name in names]
    row = 12 * len(names)
    assert found == [(12 * at, (5 * row, 4, row, 1)) for at in range(len(names))]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_reading_any_tensor_through_the_strides_of_any_other_stays_inside_its_storage(layout):
    for shapes, of in product((SHAPES, GROUPED), ("all", "do")):
        tensors = place(values_of(shapes), ((of, layout),)).tensors
        for a, b in product(tensors, tensors):
            if tensors[a].dim() == tensors[b].dim():
                extents = zip(tensors[a].shape, tensors[b].stride(), strict=True)
                last = tensors[a].storage_offset() + sum((n - 1) * s for n, s in extents)
                assert last < len(storage_of(tensors[a])), (a, b)


@pytest.mark.parametrize("name", ["tau", "seqlens"])
def test_one_number_a_head_or_a_sequence_lies_contiguous_unless_it_is_named(name):
    values = {"q": torch.randn(2, 3, 5, 4), name: torch.arange(7, 10)}
    strides = [
        place(values, ((of, "strided-last"),)).tensors[name].stride() for of in ("all", name)
    ]
    assert strides == [(1,), (2,)]
    # An assignment to all does not take back what its name was given.
    both = place(values, ((name, "strided-last"), ("all", "distinct"))).tensors
    assert both[name].stride() == (2,)


@pytest.mark.parametrize(("shape", "beyond"), [((2, 3, 37, 16), {1, 2}), ((3, 40), {0, 1})])
def test_huge_reaches_beyond_2_to_the_31_along_heads_and_along_rows(shape, beyond):
    value = torch.arange(torch.Size(shape).numel(), dtype=torch.float32).reshape(shape)
    huge, scaled = (
        place({"q": value}, (("q", of),)).tensors["q"] for of in ("huge", "huge-scaled")
    )
    assert torch.equal(huge, value)
    assert torch.equal(scaled, value)
    assert len(offsets(scaled).unique()) == value.numel()
    strides = [*enumerate(zip(shape, huge.stride(), strict=True))]
    places = sum(
        torch.arange(size).reshape([-1 if at == axis else 1 for at in range(len(shape))])
        * stride
        for axis, (size, stride) in strides
    )
    assert places.unique().numel() == value.numel()
    assert {axis for axis, (size, stride) in strides if (size - 1) * stride >= 2**31} == beyond
    assert all(stride < 2**31 for axis, (size, stride) in strides if axis in beyond and size > 2)
    order = [sorted(range(len(shape)), key=of.stride().__getitem__) for of in (huge, scaled)]
    assert order[0] == order[1]
