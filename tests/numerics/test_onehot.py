"""One-hot problems change no score, O or delta, and what their gradients show is P and dS themselves."""

from __future__ import annotations

import pytest

from gradprobe.inputs.draw import draw
from gradprobe.numerics.black_box.recover import end_to_end, plan, problem
from tests.emulated import case_of


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
        ({"batch": 1, "heads": 4, "kv_heads": 1, "seqlen": 200, "head_dim": 64}, 22),
        ({"batch": 1, "heads": 1, "kv_heads": 1, "seqlen": 1, "head_dim": 64}, 1),
    ],
)
def test_so_many_probes_show_a_case(options, count):
    """Of four heads' 800 rows and 200 keys, 38 and 10 of 48 columns take 22 and 20."""
    assert plan(case_of("softmax", **options)).count == count
