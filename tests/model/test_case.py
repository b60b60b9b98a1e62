import math

import pytest
import torch

from gradprobe.inputs.draw import draw
from gradprobe.model.case import PATTERNS, Case
from gradprobe.model.failures import UsageFailure
from gradprobe.model.resolution import resolve


def lazy(**options) -> Case:
    return resolve(options, "lazy", takes_bias=True)


def softmax(**options) -> Case:
    return resolve(options, "softmax", takes_bias=True)


def scores(case: Case) -> torch.Tensor:
    """The valid scores of a lazy case, bias in, in float64."""
    values = draw(case)
    s = values["q"].double() @ values["k"].double().mT * case.scale
    i, j = torch.arange(case.seqlen_q)[:, None], torch.arange(case.seqlen_k)[None, :]
    if case.bias:
        wide = torch.nn.functional.pad(values["bias"].double(), (0, case.seqlen_q))
        s += wide[:, (i - j).clamp(min=0)]
    return s[..., i >= j]


def test_what_is_given_decides_what_is_not_and_the_default_has_partial_tiles():
    case = lazy()
    assert all((case.seqlen_q % case.block_m, case.seqlen_k % case.block_n, case.bias))
    assert (case.causal, case.tau, case.scale) == (True, (-0.5, 0.5, -3.0), 24**-0.5)
    assert not resolve({}, "lazy", takes_bias=False).bias
    case = lazy(heads=6, head_dim=16, seqlens=(5, 9), bias=None)
    told = case.kv_heads, case.head_dim_v, case.seqlen_q, case.seqlen_k, case.scale
    assert told == (6, 16, 9, 9, 0.25)
    assert case.tau == (-0.5, 0.5, -3.0, 1.0, -0.5, 0.5)
    assert lazy(tau=(0.25,)).tau == (0.25, 0.25, 0.25)
    assert softmax(seqlen_q=7).seqlen_k == 7


REFUSED = [
    ({"head_dim": 0}, "--head-dim must be at least 1, got 0"),
    ({"block_m": 8}, "--block-m must be a power of two of at least 16, got 8"),
    ({"tau": (1.0, 2.0)}, "--tau takes one number, or one a head: 3 heads, got 2 numbers"),
    ({"seqlen_q": 7, "seqlen_k": 9}, "lazy attention needs as many keys as rows, got 7 and 9"),
    ({"seqlens": (9, -1)}, "--seqlens must lie in 0 to 9, got 9, -1"),
    ({"dtype": "float64"}, "--dtype must be one of float32, float16, bfloat16, got 'float64'"),
    ({"cu_seqlens": (0, 9)}, "--cu-seqlens: the lazy family has no such option"),
]
REFUSED_BY_SOFTMAX = [
    ({"heads": 4, "kv_heads": 3}, "--kv-heads must divide --heads, got 3 and 4"),
    ({"seqlens": (5, 5), "seqlen_q": 7, "seqlen_k": 9}, "--seqlens (right padding) needs as many keys as query rows"),
    ({"softcap": 0.0}, "--softcap must be above 0, got 0.0"),
    ({"seqlen": 10**9}, "q would have 1.4e+11 elements, more than 1.7e+10"),
    ({"dropout": 1.0}, "--dropout must lie in 0 to 1, 1 excluded, got 1.0"),
    ({"bias": True, "bias_axes": "hh"}, "--bias-axes takes some of the letters b, h, m and n, got 'hh'"),
    ({"cu_seqlens": (0, 9, 5)}, "--cu-seqlens must ascend from 0 to the number of rows, got 0,9,5"),
    ({"cu_seqlens": (0, 9), "seqlen": 8}, "--cu-seqlens ends at 9, and the length is 8"),
    ({"cu_seqlens": (0, 9), "seqlens": (9,)}, "--seqlens pads and --cu-seqlens packs"),
    (
        {"cu_seqlens": (0, 9), "cu_seqlens_k": (0, 4, 9)},
        "--cu-seqlens and --cu-seqlens-k must have as many sequences, got 1 and 2",
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("family", "options", "words"),
    [("lazy", *refused) for refused in REFUSED]
    + [("softmax", *refused) for refused in REFUSED_BY_SOFTMAX],
)
def test_a_value_that_no_case_can_have_is_refused_in_so_many_words(family, options, words):
    with pytest.raises(UsageFailure) as refusal:
        resolve(options, family, takes_bias=True)
    assert str(refusal.value) == words


@pytest.mark.parametrize("pattern", PATTERNS)
def test_one_seed_gives_the_same_values_and_another_others(pattern):
    before = torch.get_rng_state()
    first, again, other = (draw(lazy(seed=seed, pattern=pattern)) for seed in (7, 7, 8))
    for name, value in first.items():
        assert torch.equal(value, again[name])
        if name != "tau" and not (name == "bias" and pattern == "small"):
            assert not torch.equal(value, other[name])
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("scale", "head_dim", "dtype"), [(1.0, 1, "float32"), (0.05, 128, "bfloat16")]
)
def test_negative_scores_lie_below_minus_88_7_where_exp_of_their_negative_overflows(
    scale, head_dim, dtype
):
    options = {"scale": scale, "head_dim": head_dim, "dtype": dtype}
    s = scores(lazy(pattern="negative", **options))
    assert s.max() < -88.7 - math.log(72)  # and so does LSE
    assert -130 < s.mean() < -110
    s = scores(lazy(pattern="positive", scale=scale, dtype=dtype))
    assert s.min() > 88.8
    assert 110 < s.mean() < 130


def test_packed_sequences_set_the_lengths_and_a_target_that_packs_takes_seqlens_so():
    case = softmax(cu_seqlens=(0, 5, 5, 9))
    assert (case.batch, case.seqlen_q, case.seqlen_k) == (1, 9, 9)
    assert case.cu_seqlens_q == case.cu_seqlens_k == (0, 5, 5, 9)
    case = softmax(cu_seqlens=(0, 5), cu_seqlens_k=(0, 7))
    assert (case.seqlen_q, case.seqlen_k, case.cu_seqlens_k) == (5, 7, (0, 7))
    packed = resolve({"seqlens": (5, 0, 4)}, "softmax", takes_bias=False, packs=True)
    assert (packed.batch, packed.seqlens, packed.cu_seqlens_q) == (1, None, (0, 5, 5, 9))
    for options in ({"seqlens": (5, 4), "batch": 3}, {"seqlens": (5, -1)}):
        with pytest.raises(UsageFailure, match="--seqlens"):
            resolve(options, "softmax", takes_bias=False, packs=True)


def test_what_the_softmax_options_draw():
    lengths = {"seqlen_q": 50, "seqlen_k": 60, "heads": 4}
    case = softmax(**lengths, bias=True, bias_axes="bm")
    assert draw(case)["bias"].shape == (2, 1, 50, 1)
    assert tuple(case.size(axis) for axis in case.axes("dBias")) == (2, 1, 50, 1)
    values = draw(softmax(**lengths, alibi=True, sinks=True, mask="random", dropout=0.25))
    assert values["alibi"].tolist() == [0.25, 0.0625, 0.015625, 0.00390625]
    assert (values["sinks"].shape, values["mask"].shape) == ((4,), (2, 4, 50, 60))
    i = torch.arange(50)
    assert values["mask"][:, :, i, i + 10].all()  # the diagonal of the bottom right corner
    # 24,000 draws: five standard deviations of their mean are 0.014
    assert abs(values["keep"].double().mean() - 0.75) < 0.014
    dead = draw(softmax(mask="dead-rows"))["mask"]
    assert torch.equal(
        dead.any(-1)[0, 0].logical_not().nonzero().flatten(), torch.arange(3, 72, 7)
    )
    padding = draw(softmax(mask="padding"))["mask"]
    assert padding.shape == (2, 1, 1, 72)
    assert padding.int().diff().le(0).all()
