import torch

from gradprobe.commands.survey import trials_of
from gradprobe.inputs.tensor_layouts import place
from gradprobe.model.assignment import LAYOUTS
from gradprobe.probing import experiment
from tests.commands.strides.benches import bench_for, trials_for

SHAPE = (2, 3, 37, 16)
SHAPES = {
    "q": SHAPE, "k": SHAPE, "v": SHAPE, "do": SHAPE, "o": SHAPE, "lse": SHAPE[:3], "bias": (3, 40), "tau": (3,),
    "seqlens": (2,), "dq": SHAPE, "dk": SHAPE, "dv": SHAPE,
}  # fmt: skip


def trials(fast=False, shapes=SHAPES):
    return {trial.title: trial for trial in trials_of(shapes, fast=fast)}


def placed(trial):
    values = {name: torch.randn(shape) for name, shape in SHAPES.items()}
    return place(values, trial.assigned).tensors


def test_each_tensor_of_four_axes_is_tried_in_all_eight_layouts_and_one_that_cannot_repeat_in_seven():
    rows = {}
    for trial in trials().values():
        rows.setdefault(trial.tried.row, []).append(trial.tried.layout)
        assert trial.thorough
    assert rows["all"] == list(LAYOUTS)
    assert rows["q"] == rows["do"] == list(LAYOUTS[1:])
    assert set(rows["q"]) - set(rows["dq"]) == set(rows["q"]) - set(rows["o"]) == {"expanded"}
    assert set(rows["q"]) - set(rows["lse"]) == {"packed", "expanded"}
    assert rows["tau"] == rows["seqlens"] == ["offset"]


def test_fast_tries_everything_at_once_do_alone_as_programs_lay_it():
    fast = trials(fast=True).values()
    assert [trial.tried.layout for trial in fast if trial.tried.row == "all"] == list(LAYOUTS)
    alone = [trial.title for trial in fast if trial.tried.kind == "one tensor"]
    assert alone == ["do=blhd", "do=distinct"]
    twice = {trial.title for trial in fast if trial.thorough}
    assert twice == {"contiguous", "distinct", "distinct-unit", "huge"}


def test_packed_tensors_are_slots_of_a_buffer_each_and_out_sum_gives_a_do_of_one_element():
    tried = trials()
    qkv = placed(tried["packed qkv, dO a [B, L, H, D] view"])
    kv = placed(tried["packed kv, q and dO [B, L, H, D] views"])
    for found, names, row in ((qkv, "qkv", 3 * 48), (kv, "kv", 2 * 48)):
        for group in (names, [f"d{name}" for name in names]):
            buffers = {found[name].untyped_storage().data_ptr() for name in group}
            assert len(buffers) == 1
            assert {found[name].stride() for name in group} == {(37 * row, 16, row, 1)}
    assert kv["q"].stride() == kv["do"].stride() == kv["dq"].stride() == (37 * 48, 16, 48, 1)
    found = placed(tried["out.sum() of [B, L, H, D] views"])
    assert (found["do"].stride(), found["q"].stride()) == ((0, 0, 0, 0), (37 * 48, 16, 48, 1))
    without = {name: shape for name, shape in SHAPES.items() if name != "o"}
    saved = [
        title for each in (SHAPES, without) for title in trials(shapes=each) if "saved" in title
    ]
    assert len(saved) == 2


WRITES_OVER_Q = """
import torch
def backward(q, k, v, do):
    p = torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, -1)
    found = {"dV": p.mT @ do}
    q.zero_()
    return found
"""


def test_values_are_drawn_once_for_all_layouts_and_are_the_same_in_each(tmp_path, monkeypatch):
    (tmp_path / "over.py").write_text(WRITES_OVER_Q)
    drawn, draw = [], experiment.draw
    monkeypatch.setattr(experiment, "draw", lambda *of: drawn.append(draw(*of)) or drawn[-1])
    small = {"batch": 1, "heads": 2, "seqlen": 20, "head_dim": 8, "device": "cpu"}
    bench = bench_for(f"{tmp_path}/over.py:backward", **small)
    tried, before, errors = trials_for(bench), len(drawn), set()
    for title in ("contiguous", "distinct", "blhd"):
        found = bench.run(tried[title]).intermediates
        errors.add(tuple(one.max_abs_err for one in found))
    assert (len(drawn) - before, len(errors), errors != {()}) == (1, 1, True)
