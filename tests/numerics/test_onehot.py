"""One-hot problems change no score, O or delta, and what their gradients show is P and dS themselves."""

from __future__ import annotations

import pytest

from gradprobe.inputs.draw import draw
from gradprobe.numerics.black_box.onehot import end_to_end, plan, problem
from tests.emulated import case_of

CASES = {
    "three head dims": ("softmax", {"head_dim": 3, "head_dim_v": 2}),
    "80, a group of four": ("softmax", {"head_dim": 80, "heads": 4, "kv_heads": 1, "batch": 1}),
    "few rows": ("softmax", {"seqlen_q": 1, "seqlen_k": 50}),
    "few keys": ("softmax", {"seqlen_q": 50, "seqlen_k": 1}),
    "softcap, window, sinks": (
        "softmax",
        {"softcap": 2.0, "window": (9, 3), "sinks": True, "kv_heads": 1},
    ),
    "bias by batch, alibi": ("softmax", {"bias": True, "bias_axes": "bn", "alibi": True}),
    "mask": ("softmax", {"mask": "dead-rows", "causal": True, "seqlen_k": 40}),
    "padding": ("softmax", {"seqlens": (72, 0)}),
    "packed": ("softmax", {"cu_seqlens": (0, 20, 20, 50)}),
    "dropout": ("softmax", {"dropout": 0.3}),
    "scale below zero": ("softmax", {"scale": -0.7}),
    "lazy": ("lazy", {"bias": True}),
}


@pytest.fixture(params=CASES, ids=lambda name: name.replace(" ", "-"))
def case(request):
    family, options = CASES[request.param]
    return case_of(family, **options)


def wide(values):
    items = values.items()
    return {name: one.double() if one.is_floating_point() else one for name, one in items}


def test_scores_that_lie_far_from_0_do_so_in_every_probe():
    """A kernel that subtracts no maximum is wrong beyond 88.7 alone."""
    case = case_of("softmax", pattern="negative", kv_heads=1, head_dim=64, scale=0.4)
    values = problem(case, plan(case), wide(draw(case)), 0)
    scores = -case.scale * values["q"] @ values["k"].mT
    assert 100 < float(scores.min()) < float(scores.max()) < 140


def test_each_probe_has_a_mask_of_its_own_also_where_the_case_has_one_batch():
    """A kernel that addresses the mask of each batch by the mask's strides would read beyond one that is shared."""
    case = case_of("softmax", batch=1, heads=1, seqlen=8, head_dim=8, mask="random")
    layout, values = plan(case), wide(draw(case))
    together = end_to_end(case, [problem(case, layout, values, 0)] * 2)
    assert together["mask"].shape == (2, 1, 8, 8)


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ({"batch": 1, "heads": 2, "kv_heads": 2, "seqlen": 200, "head_dim": 64}, 9),
        ({"batch": 1, "heads": 4, "kv_heads": 1, "seqlen": 200, "head_dim": 64}, 22),
        ({"batch": 1, "heads": 1, "kv_heads": 1, "seqlen": 1, "head_dim": 64}, 1),
    ],
)
def test_so_many_probes_show_a_case(options, count):
    """200 of 24 columns take 9; of four heads' 800 rows and 200 keys, 38 and 10 of 48 columns take 22 and 20."""
    assert plan(case_of("softmax", **options)).count == count
