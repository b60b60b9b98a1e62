"""Each layout holds the values, with the strides that it names, in guard bands wide enough for any wrong read."""

import resource
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradprobe.inputs.draw import draw
from gradprobe.inputs.guard_bands import guard_values
from gradprobe.inputs.tensor_layouts import VECTORS, layout_of, place
from gradprobe.model.assignment import DEFAULT_RUNS, LAYOUTS, TENSORS, parse_layout, run_name
from gradprobe.model.failures import UsageFailure
from tests.cases import lazy_case
from tests.sampling import tries

SHAPES = {
    "q": (2, 3, 5, 4), "k": (2, 3, 5, 4), "v": (2, 3, 5, 4), "do": (2, 3, 5, 4), "o": (2, 3, 5, 4),
    "lse": (2, 3, 5), "delta": (2, 3, 5), "bias": (3, 7), "tau": (3,), "seqlens": (2,),
    "dq": (2, 3, 5, 4), "dk": (2, 3, 5, 4), "dv": (2, 3, 5, 4), "dbias": (3, 7), "dtau": (3,), "dsink": (3,),
}  # fmt: skip
GROUPED = SHAPES | {
    "q": (2, 4, 5, 6),
    "k": (2, 2, 9, 6),
    "v": (2, 2, 9, 3),
    "do": (2, 4, 5, 3),
    "o": (2, 4, 5, 3),
}
GROUPED |= {"dq": (2, 4, 5, 6), "dk": (2, 2, 9, 6), "dv": (2, 2, 9, 3)}
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
    """Shapes of a case, a dtype, and a layout for all tensors and for some by name."""
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
    return (
        shapes,
        draw(st.sampled_from([torch.float32, torch.float16, torch.bfloat16])),
        tuple(assigned),
    )


@tries(60)
@given(_placed())
def test_whatever_lies_where_every_tensor_holds_its_values_apart_from_all_others_in_known_values(
    placed,
):
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
        outside = taken.setdefault(
            tensor.untyped_storage().data_ptr(), torch.ones(len(storage_of(tensor)), dtype=bool)
        )
        assert outside[where].all(), name
        outside[where] = False
    for tensor in inputs.tensors.values():
        storage, outside = storage_of(tensor), taken[tensor.untyped_storage().data_ptr()]
        assert outside[:FRONT].all()
        assert outside[-1]
        assert torch.equal(
            storage[outside], guard_values(len(storage), tensor.dtype, tensor.device)[outside]
        )


@pytest.mark.parametrize("layout", STRIDES)
def test_the_strides_are_those_that_the_layout_names(layout):
    for name, tensor in place(values_of(), (("all", layout),)).tensors.items():
        kept = layout == "expanded" and name in NEVER_EXPANDED
        assert tensor.stride() == STRIDES["contiguous" if kept else layout][tensor.dim()], name
        if layout not in ("packed", "expanded"):
            assert tensor.storage_offset() == FRONT + (5 if layout == "offset" else 0)


@pytest.mark.parametrize("shapes", [SHAPES, GROUPED], ids=["alike", "grouped"])
def test_distinct_gives_each_axis_of_each_tensor_a_stride_that_no_other_has(shapes):
    tensors = place(values_of(shapes), (("all", "distinct"),)).tensors
    assert {tensors[name].stride() for name in shapes if name in VECTORS} == {(1,)}
    strides = [
        stride
        for name, tensor in tensors.items()
        if name not in VECTORS
        for stride in tensor.stride()
    ]
    assert (
        len(strides)
        == len(set(strides))
        == sum(len(shape) for name, shape in shapes.items() if name not in VECTORS)
    )
    assert min(strides) > 1


def test_expanded_is_one_stored_element_of_stride_0_and_1_for_do():
    inputs = place(values_of(), (("all", "expanded"),))
    for name in ("q", "k", "v", "do", "bias"):
        tensor = inputs.tensors[name]
        assert offsets(tensor).unique().tolist() == [FRONT]
        assert tensor.flatten()[0] == (1 if name == "do" else values_of()[name].flatten()[0])
        assert inputs.values[name].is_contiguous()


def sharing(tensors, *names):
    """The names that lie in one storage with the first of them and no other tensor."""
    places = {name: tensor.untyped_storage().data_ptr() for name, tensor in tensors.items()}
    return {name for name in tensors if places[name] == places[names[0]]} == set(names)


@pytest.mark.parametrize("names", [("q", "k", "v"), ("dq", "dk", "dv")], ids=" ".join)
def test_packed_q_k_and_v_and_their_gradients_are_the_three_slots_of_one_storage_each(names):
    tensors = place(values_of(), (("all", "packed"),)).tensors
    assert sharing(tensors, *names)
    assert [tensors[name].storage_offset() - FRONT for name in names] == [0, 12, 24]
    together = torch.cat([offsets(tensors[name]) for name in names])
    assert together.sort().values.tolist() == list(range(FRONT, FRONT + 3 * 120))


@pytest.mark.parametrize("names", [("k", "v"), ("dk", "dv")], ids=" ".join)
@pytest.mark.parametrize(
    "of_another_shape", [False, True], ids=["contiguous", "packed-of-another-shape"]
)
def test_packed_k_and_v_without_q_are_the_two_slots_of_one_storage(names, of_another_shape):
    grouped = {"q": (2, 6, 5, 4), "dq": (2, 6, 5, 4)} if of_another_shape else {}
    assigned = (
        (("all", "packed"),) if of_another_shape else tuple((name, "packed") for name in names)
    )
    tensors = place(values_of(SHAPES | grouped), assigned).tensors
    assert sharing(tensors, *names)
    assert [(tensors[name].storage_offset() - FRONT, tensors[name].stride()) for name in names] == [
        (0, (120, 4, 24, 1)), (12, (120, 4, 24, 1)),
    ]  # fmt: skip
    together = torch.cat([offsets(tensors[name]) for name in names])
    assert together.sort().values.tolist() == list(range(FRONT, FRONT + 2 * 120))


@pytest.mark.parametrize(
    ("shapes", "assigned"),
    [
        (GROUPED, (("all", "packed"),)),
        (SHAPES, (("q", "packed"), ("dk", "packed"))),
        (SHAPES, (("q", "packed"), ("k", "packed"), ("dq", "packed"), ("dv", "packed"))),
    ],
    ids=["of-different-shapes", "alone", "without-k-or-v"],
)
def test_other_packed_tensors_keep_storages_of_their_own(shapes, assigned):
    tensors = place(values_of(shapes), assigned).tensors
    for name in ("q", "k", "v", "dq", "dk", "dv"):
        assert sharing(tensors, name)
        assert torch.equal(tensors[name], values_of(shapes)[name])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int32])
def test_guard_values_are_finite_away_from_0_and_the_same_for_every_size(dtype):
    values = guard_values(5000, dtype, torch.device("cpu"))
    assert ((values.abs() >= 4) & (values.abs() <= 8)).all()
    assert (values > 0).any()
    assert (values < 0).any()
    assert torch.equal(values[:77], guard_values(77, dtype, torch.device("cpu")))


@pytest.mark.parametrize("shapes", [SHAPES, GROUPED], ids=["alike", "grouped"])
@pytest.mark.parametrize("mixed", [False, True], ids=["all", "do-alone"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_reading_any_tensor_through_the_strides_of_any_other_stays_inside_its_storage(
    layout, mixed, shapes
):
    tensors = place(values_of(shapes), (("do" if mixed else "all", layout),)).tensors
    pairs = [(a, b) for a, b in product(tensors, tensors) if tensors[a].dim() == tensors[b].dim()]
    assert len(pairs) == 64 + 4 + 4 + 16
    for a, b in pairs:
        tensor, strides = tensors[a], tensors[b].stride()
        last = tensor.storage_offset() + sum(
            (n - 1) * s for n, s in zip(tensor.shape, strides, strict=True)
        )
        assert last < len(storage_of(tensor)), (a, b)


def test_later_assignments_win_and_all_means_every_tensor():
    inputs = place(
        values_of(),
        (("all", "strided-last"), ("do", "expanded"), ("q", "distinct"), ("q", "contiguous")),
    )
    assert inputs.tensors["do"].stride() == (0, 0, 0, 0)
    assert inputs.tensors["q"].stride() == (60, 20, 4, 1)
    assert inputs.tensors["k"].stride() == (120, 40, 8, 2)
    assert inputs.layout == "strided-last,do=expanded,q=distinct,q=contiguous"


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "name", ["tau", "alibi", "sinks", "seqlens", "cu_seqlens_q", "cu_seqlens_k", "dtau", "dsink"]
)
def test_one_number_a_head_or_a_sequence_lies_contiguous_unless_it_is_named(name, layout):
    values = {"q": torch.randn(2, 3, 5, 4), name: torch.arange(7, 10)}
    (of_all, step), (of_its_name, named) = (
        (tensors[name], tensors[name].stride(0))
        for tensors in (
            place(values, assigned).tensors for assigned in ((("all", layout),), ((name, layout),))
        )
    )
    assert step == 1
    assert torch.equal(of_all, values[name])
    assert of_all.storage_offset() == FRONT + (5 if layout == "offset" else 0)
    moved = {
        "expanded": name == "tau" or name == "alibi" or name == "sinks",
        "strided-last": True,
        "huge": True,
    }
    assert (named != 1) is moved.get(layout, layout == "distinct")
    # An assignment to all does not take back what its name was given.
    both = place(values, ((name, "strided-last"), ("all", "distinct"))).tensors
    assert both[name].stride() == (2,)


def test_the_default_runs_are_contiguous_distinct_and_do_expanded():
    assert [run_name(assigned) for assigned in DEFAULT_RUNS] == [
        "contiguous",
        "distinct",
        "do=expanded",
    ]
    assert place(values_of(), ()).tensors["do"].is_contiguous()


def test_a_layout_is_parsed_with_the_tensor_in_either_case():
    words = [
        parse_layout(f"{tensor}={layout}") for tensor, layout in product((*TENSORS, "all"), LAYOUTS)
    ]
    assert words == list(product((*TENSORS, "all"), LAYOUTS))
    assert parse_layout("dO=expanded") == ("do", "expanded")
    assert parse_layout("distinct") == ("all", "distinct")


@pytest.mark.parametrize(
    ("word", "words"),
    [
        ("spread", "--layout takes TENSOR=NAME or NAME, got 'spread'"),
        ("", "--layout takes TENSOR=NAME or NAME, got ''"),
        ("dx=expanded", "--layout: no tensor 'dx'"),
        ("do=diagonal", "--layout: no layout 'diagonal'"),
        ("do=", "--layout: no layout ''"),
        ("=distinct", "--layout: no tensor ''"),
    ],
)
def test_a_layout_that_cannot_be_is_refused(word, words):
    with pytest.raises(UsageFailure) as refusal:
        parse_layout(word)
    assert str(refusal.value) == words


def test_distinct_unit_gives_every_tensor_a_last_stride_of_1_and_other_strides_of_its_own():
    inputs = place(draw(lazy_case()), (("all", "distinct-unit"),))
    strides = [stride for tensor in inputs.tensors.values() for stride in tensor.stride()[:-1]]
    assert {tensor.stride(-1) for tensor in inputs.tensors.values()} == {1}
    assert len(strides) == len(set(strides))
    for name, tensor in inputs.tensors.items():
        assert torch.equal(tensor, inputs.values[name])


@pytest.mark.parametrize(
    "shape", [(2, 3, 37, 16), (2, 3, 37), (3, 40), (3,), (1, 1, 1, 1), (4, 12, 200, 72)]
)
def test_huge_reaches_beyond_2_to_the_31_along_heads_and_along_rows_and_no_two_elements_share_a_place(
    shape,
):
    value = torch.arange(torch.Size(shape).numel(), dtype=torch.float32).reshape(shape)
    tensor = place({"q": value}, (("q", "huge"),)).tensors["q"]
    assert torch.equal(tensor, value)
    places = sum(
        torch.arange(size).reshape([-1 if at == axis else 1 for at in range(len(shape))]) * stride
        for axis, (size, stride) in enumerate(zip(shape, tensor.stride(), strict=True))
    )
    assert places.unique().numel() == value.numel()
    crossing = [
        axis for axis, size in enumerate(shape) if (size - 1) * tensor.stride(axis) >= 2**31
    ]
    steps = [axis for axis, size in enumerate(shape) if size > 1]
    assert set(crossing) == set(steps) - (
        {0, 3} if len(shape) == 4 else {0} if len(shape) == 3 else set()
    )
    assert all(tensor.stride(axis) < 2**31 for axis in crossing if shape[axis] > 2)


@pytest.mark.parametrize("shape", [(2, 3, 37, 16), (2, 3, 37), (3, 40), (4, 12, 200, 72)])
def test_huge_scaled_is_huge_with_its_axes_in_the_same_order_far_below_2_to_the_31(shape):
    value = torch.arange(torch.Size(shape).numel(), dtype=torch.float32).reshape(shape)
    huge, scaled = (
        place({"q": value}, (("q", name),)).tensors["q"] for name in ("huge", "huge-scaled")
    )
    assert torch.equal(scaled, value)
    assert len(offsets(scaled).unique()) == value.numel()
    assert scaled.untyped_storage().nbytes() < 2**28
    order = [
        sorted(range(len(shape)), key=tensor.stride().__getitem__) for tensor in (huge, scaled)
    ]
    assert order[0] == order[1]


def test_huge_takes_no_more_memory_than_the_pages_that_are_touched():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    tensors = place(values_of(), (("all", "huge"),)).tensors
    assert tensors["q"].untyped_storage().nbytes() > 2**33
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000, "kilobytes"
