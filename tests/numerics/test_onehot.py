"""One-hot problems change no score, O or delta, and what their gradients show is P and dS themselves."""

from __future__ import annotations

import pytest
import torch

from gradprobe.inputs.draw import draw
from gradprobe.numerics.black_box.onehot import ZERO_KEYS, end_to_end, plan, problem, read_probe
from gradprobe.reference import manual_attention_backward
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


def reference_of(case, values):
    names = ("causal", "window", "softcap", "align", "dropout", "scale")
    options = {name: getattr(case, name) for name in names}
    return manual_attention_backward(**values, family=case.family, **options)


def assert_same(actual, expected):
    """Equal but for float64's rounding, of sums that have up to 80 terms and end near 1."""
    assert float((actual - expected).abs().max()) <= 1e-13 * (1 + float(expected.abs().max()))


@pytest.fixture(params=CASES, ids=lambda name: name.replace(" ", "-"))
def case(request):
    family, options = CASES[request.param]
    return case_of(family, **options)


def wide(values):
    items = values.items()
    return {name: one.double() if one.is_floating_point() else one for name, one in items}


def test_one_hot_columns_change_no_score_no_o_and_no_delta(case):
    layout, values = plan(case), wide(draw(case))
    bare = {name: value.clone() for name, value in problem(case, layout, values, 0).items()}
    bare["k"][..., layout.free] = bare["q"][..., layout.free] = 0
    bare["v"][..., layout.free_v] = bare["do"][..., layout.free_v] = 0
    expected = reference_of(case, bare)
    for index in range(layout.count):
        actual = reference_of(case, problem(case, layout, values, index))
        for name in ("LSE", "P", "O", "dP", "delta", "dS"):
            same = (actual[name] == expected[name]) | (
                (actual[name] - expected[name]).abs() < 1e-12
            )
            assert bool(same.all()), (index, name)


def test_the_probes_of_a_case_show_every_element_of_p_and_ds(case):
    layout, values = plan(case), wide(draw(case))
    expected = reference_of(case, problem(case, layout, values, 0))
    lost = float("nan")
    shown = {name: torch.full_like(expected["P"], lost) for name in ("dQ", "dK", "dV")}
    for index in range(layout.count):
        read_probe(
            case, layout, index, reference_of(case, problem(case, layout, values, index)), shown
        )
    assert_same(shown["dQ"], expected["dS"])
    assert_same(shown["dK"], expected["dS"])
    share = 1.0 if not case.dropout else values["keep"].double() / (1 - case.dropout)
    assert_same(shown["dV"], expected["P"] * share)


def test_scores_that_lie_far_from_0_do_so_in_every_probe():
    """A kernel that subtracts no maximum is wrong beyond 88.7 alone."""
    case = case_of("softmax", pattern="negative", kv_heads=1, head_dim=64, scale=0.4)
    values = problem(case, plan(case), wide(draw(case)), 0)
    scores = -case.scale * values["q"] @ values["k"].mT
    assert 100 < float(scores.min()) < float(scores.max()) < 140


def test_keys_without_a_value_have_a_dp_of_0_and_show_delta(case):
    layout, values = plan(case), wide(draw(case))
    results = reference_of(case, problem(case, layout, values, layout.count - 1))
    assert not results["dP"][..., ::ZERO_KEYS].any()
    assert case.seqlen_k < 2 or results["dP"][..., 1:].any() or case.cu_seqlens_k is not None


def test_probes_end_to_end_give_each_its_own_results(case):
    if case.cu_seqlens_q is not None:
        pytest.skip("packed sequences are one batch")
    layout, values = plan(case), wide(draw(case))
    indices = range(min(layout.count, 3))
    problems = [problem(case, layout, values, index) for index in indices]
    together = reference_of(case, end_to_end(case, problems))
    for index in indices:
        alone = reference_of(case, problems[index])
        batches = slice(index * case.batch, (index + 1) * case.batch)
        for name in ("P", "dS", "dQ", "dK", "dV"):
            assert torch.equal(together[name][batches], alone[name])


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


@pytest.mark.parametrize("options", [{"head_dim": 2}, {"head_dim_v": 1}, {"scale": 0.0}])
def test_there_is_no_plan_without_room_or_scale(options):
    assert plan(case_of("softmax", **options)) is None
