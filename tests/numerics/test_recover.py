"""P, dP, delta and dS of right kernels are recovered within the error stated, which is not much more than they need."""

import random
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gradprobe.inputs.draw import draw
from gradprobe.numerics import one_hot as recovering
from gradprobe.numerics.budget import slope_of
from gradprobe.numerics.compare import attention_of
from gradprobe.numerics.evidence import MeasuredRun
from gradprobe.numerics.one_hot import end_to_end, obstacle, plan, problem, recover
from gradprobe.reference import manual_attention_backward, tiles
from tests.black_box import GRADIENTS, answer_of, inside_of, recovered_of
from tests.emulated import case_of
from tests.numerics.test_budget import ARITHMETICS, PATTERNS, dtype_of
from tests.pipeline.test_softmax_no_false_alarm import drawn
from tests.sampling import DRAWS, tries

MATRICES = ("P", "dP", "delta", "dS")


@tries(3, night=2000)
@given(DRAWS, st.sampled_from([True, False, False]))
def test_looking_into_a_right_softmax_kernel_accuses_nothing(draws, dropping):
    """Every option; dropout, which hides P, in every third case at most."""
    name, how, options = drawn(draws)
    dropout = options["dropout"] if dropping else 0.0
    case = case_of(
        "softmax", **options | {"scale": options["scale"] or None, "dropout": dropout}
    )
    assume(not obstacle(case, draw(case)))
    found = accused_of_nothing(case, how, f"{name}, {how}, {options}")
    assert found == {"dS", *GRADIENTS} | (set() if dropout else {"P", "dP", "delta"})


def accused_of_nothing(case, how, told):
    inside = inside_of(case, how)
    findings = inside.measured.comparison.findings
    wrong = {at: one.max_ratio for at, one in findings.items() if one.mismatched}
    assert not wrong, f"{told} was accused of {wrong}"
    assert inside.sentences == (), told
    return set(findings)


def drawn_lazy(draws: random.Random) -> tuple[str, dict[str, Any]]:
    pick, name = draws.choice, draws.choice(list(ARITHMETICS))
    seqlen, batch, heads = draws.randint(1, 130), draws.randint(1, 2), draws.randint(1, 3)
    options = {
        "batch": batch, "heads": heads, "seqlen": seqlen, "head_dim": pick([3, 5, 16, 24, 50, 80]),
        "dtype": dtype_of(name), "pattern": pick(PATTERNS), "seed": draws.randint(0, 2**31),
        "bias": pick([True, False]), "scale": pick([None, None, 1.0, 1e-3, -0.3]),
        "tau": tuple(pick([-0.5, 0.5, -3.0, 1.0, 0.0, -1.0, 100.0]) for _ in range(heads)),
        "seqlens": pick([None, None, tuple(draws.randint(0, seqlen) for _ in range(batch))]),
    }  # fmt: skip
    return name, options


@tries(5, night=2000)
@given(DRAWS)
def test_looking_into_a_right_lazy_kernel_accuses_nothing(draws):
    name, options = drawn_lazy(draws)
    case = case_of("lazy", **options)
    assert set(MATRICES) < accused_of_nothing(case, ARITHMETICS[name], f"{name}, {options}")


@pytest.mark.parametrize(
    "options",
    [
        {"heads": 4, "kv_heads": 2, "seqlen_q": 30, "seqlen_k": 50, "causal": True},
        {"cu_seqlens": (0, 20, 20, 50)},
        {"seqlens": (50, 0), "seqlen": 72},
    ],
    ids=str,
)
def test_recovered_values_are_the_references_to_a_float32_of_20_roundings(options):
    """No comparison of gradprobe takes part; scores are below 8 and sums have at most 300 terms, near 20 roundings."""
    case = case_of("softmax", **options)
    recovered = recovered_of(case)
    expected = manual_attention_backward(
        **recovered.values, causal=case.causal, scale=case.scale
    )
    spread = expected["dP"].abs() + expected["delta"].abs()[..., None]
    for name, size in (("P", expected["P"]), ("dS", expected["P"] * spread)):
        error = (recovered.trace.values[name].double() - expected[name]).abs()
        assert bool((error <= 20 * 2**-23 * (size + expected["P"])).all()), name
    assert set(recovered.trace.sources.values()) == {"exported", "recovered"}


@pytest.mark.parametrize(
    ("exposed", "seen"),
    [(("dK",), {"dS"}), (("dV",), {"P"}), (("dQ", "dK"), {"dS"}), (("O", "LSE", "dQ", "dV"), set(MATRICES))],
)  # fmt: skip
def test_what_is_exposed_decides_what_is_recovered(exposed, seen):
    case = case_of("softmax", seqlen=40)
    inside = inside_of(case, exposed=exposed)
    sources = inside.measured.trace.sources
    assert {name for name, source in sources.items() if source == "recovered"} == seen
    assert {name for name, source in sources.items() if source == "exported"} == set(exposed)
    assert inside.measured.matches
    assert inside.sentences == ()


def test_delta_is_read_at_a_key_that_the_softcap_has_not_flattened():
    """At scores of tens under a cap of 1 the derivative is 0 in float64 at many keys, often those of the largest P."""
    case = case_of(
        "softmax", batch=1, heads=2, seqlen=60, softcap=1.0, pattern="large", scale=1.0
    )
    recovered = recovered_of(case)
    x = attention_of(case, recovered.values)
    (tile,) = tiles(x)
    slope = slope_of(x, tile)
    keys = recovered.recovery.zero_key[0]
    assert bool((slope.gather(-1, keys[..., None]) > 0).all())
    assert int((slope == 0).sum()) > 100


def counted(case, **options):
    batches, answer = [], answer_of()

    def counting(several, values, first):
        batches.append(several.batch)
        return answer(several, values, first)

    recover(case, draw(case), counting, **options)
    return batches


def test_all_9_probes_are_one_call_of_bounded_size_and_packed_sequences_are_probed_one_by_one(
    monkeypatch,
):
    case = case_of("softmax", batch=1, heads=2, seqlen=200, head_dim=64)
    assert plan(case).count == 9
    assert counted(case) == [9]
    assert counted(case, one_by_one=True) == [1] * 9
    monkeypatch.setattr(recovering, "CALL_SCORES", 3 * 2 * 200 * 200)
    assert set(counted(case)) <= {1, 2, 3}
    monkeypatch.setattr(recovering, "CALL_ELEMENTS", 2 * 2 * 200 * 64)
    assert set(counted(case)) <= {1, 2}
    assert set(counted(case_of("softmax", cu_seqlens=(0, 20, 50)))) == {1}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"scale": 0.0}, "scale 0"),
        ({"head_dim": 2}, "3 head dims"),
        ({"head_dim_v": 1}, "24 and 1"),
        ({"seqlen": 2048}, "a smaller --seqlen shows them"),
    ],
)
def test_what_stands_in_the_way_is_told(options, words):
    assert words in obstacle(case_of("softmax", **options), {})


def test_there_is_nothing_to_recover_of_a_target_that_exposes_p_and_ds_or_no_gradient():
    case = case_of("softmax", seqlen=40)
    values = draw(case)
    for exposed, is_recoverable in (
        (("P", "dS", "dQ"), False),
        (("O", "LSE"), False),
        (("P", "dQ"), True),
    ):
        trace = answer_of(exposed=exposed)(case, values, values)
        assert MeasuredRun(lambda: None, trace, None, None, ()).is_recoverable is is_recoverable


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
