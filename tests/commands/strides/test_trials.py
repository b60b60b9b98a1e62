"""Every tensor is tried in every layout that moves it, all at once, and as real programs lay them."""

import pytest
import torch

from gradprobe.commands.strides.trials import BOTH, trials_of
from gradprobe.inputs.tensor_layouts import place
from gradprobe.model.assignment import LAYOUTS

SHAPE = (2, 3, 37, 16)
SHAPES = {
    "q": SHAPE, "k": SHAPE, "v": SHAPE, "do": SHAPE, "o": SHAPE, "lse": SHAPE[:3], "bias": (3, 40), "tau": (3,),
    "seqlens": (2,), "dq": SHAPE, "dk": SHAPE, "dv": SHAPE,
}  # fmt: skip


def placed(trial, shapes=SHAPES):
    values = {name: torch.randn(shape) for name, shape in shapes.items()}
    return place(values, trial.assigned, trial.placements or None).tensors


def test_each_tensor_of_four_axes_is_tried_in_all_eight_layouts_and_one_that_cannot_repeat_in_seven():
    trials = trials_of(SHAPES, fast=False)
    rows = {}
    for trial in trials:
        rows.setdefault(trial.row, []).append(trial.layout)
    assert rows["all"] == list(LAYOUTS)
    assert rows["q"] == rows["do"] == list(LAYOUTS[1:])
    assert set(rows["q"]) - set(rows["dq"]) == set(rows["q"]) - set(rows["o"]) == {"expanded"}
    assert set(rows["q"]) - set(rows["lse"]) == {"packed", "expanded"}
    assert set(rows["tau"]) == {"expanded", "distinct", "strided-last", "offset"}
    assert set(rows["seqlens"]) == {"distinct", "strided-last", "offset"}


def test_fast_tries_everything_at_once_do_alone_as_programs_lay_it_and_vectors_apart():
    trials = trials_of(SHAPES, fast=True)
    assert [trial.layout for trial in trials if trial.row == "all"] == list(LAYOUTS)
    assert [trial.title for trial in trials if trial.kind == "one tensor"] == [
        "do=blhd", "do=distinct", "tau=distinct", "seqlens=distinct",
    ]  # fmt: skip
    twice = {trial.title for trial in trials if trial.fills == BOTH}
    assert twice == {"contiguous", "distinct", "distinct-unit", "huge"}
    every = trials_of(SHAPES, fast=False)
    assert all(trial.fills == BOTH for trial in every)


def test_packed_qkv_and_its_gradients_are_three_slots_of_a_buffer_each_and_packed_kv_two():
    programs = {
        trial.title: placed(trial)
        for trial in trials_of(SHAPES, fast=False)
        if trial.kind == "program"
    }
    qkv = programs["packed qkv, dO a [B, L, H, D] view"]
    kv = programs["packed kv, q and dO [B, L, H, D] views"]
    for found, names, row in ((qkv, "qkv", 3 * 48), (kv, "kv", 2 * 48)):
        for group in (names, [f"d{name}" for name in names]):
            buffers = {found[name].untyped_storage().data_ptr() for name in group}
            assert len(buffers) == 1
            assert {found[name].stride() for name in group} == {(37 * row, 16, row, 1)}
    assert kv["q"].stride() == kv["do"].stride() == kv["dq"].stride() == (37 * 48, 16, 48, 1)


@pytest.mark.parametrize(("axis", "what"), [(1, "heads"), (2, "rows"), (3, "head dims")])
def test_the_backward_of_cat_leaves_do_where_autograd_does(axis, what):
    by_title = {trial.title: trial for trial in trials_of(SHAPES, fast=False)}
    do = placed(by_title[f"torch.cat of {what}, its backward"])["do"]
    whole = torch.empty([2 * size if at == axis else size for at, size in enumerate(SHAPE)])
    part = whole.narrow(axis, SHAPE[axis], SHAPE[axis])
    assert do.stride() == part.stride()
    assert (do.storage_offset() - part.storage_offset()) % 128 == 0
    assert part.storage_offset() > 0


def test_the_output_summed_gives_a_do_of_one_element_and_saved_tensors_are_tried_where_they_are_taken():
    trials = trials_of(SHAPES, fast=False)
    (trial,) = [trial for trial in trials if trial.title.startswith("out.sum()")]
    found = placed(trial)
    assert (found["do"].stride(), found["q"].stride()) == ((0, 0, 0, 0), (37 * 48, 16, 48, 1))
    assert len([trial for trial in trials if trial.title.startswith("O saved")]) == 2
    without = {name: shape for name, shape in SHAPES.items() if name != "o"}
    assert not any("saved" in trial.title for trial in trials_of(without, fast=False))
