"""A case's tensors and options under a target's own names; what it cannot take is said, never dropped."""

import pytest

from gradprobe.cases.case import resolve
from gradprobe.cases.draw import draw
from gradprobe.failures import UsageFailure
from gradprobe.targets.bind import bind
from gradprobe.targets.find import find_target


def bound(function, **options):
    case = resolve(options, "softmax", takes_bias=False)
    return bind(find_target(f"{__name__}:{function.__name__}"), case, draw(case))


def plain(q, k, v, do): ...


def packs(q, k, v, do, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k): ...


def packs_alike(q, k, v, do, cu_seqlens, max_seqlen=None): ...


def drops(q, k, v, do, dropout=0.0): ...


def masks(q, k, v, do, mask=None): ...


def torch_like(q, k, v, do, attn_mask=None): ...


def additive(q, k, v, do, bias=None): ...


@pytest.mark.parametrize(
    ("options", "flag"),
    [
        ({"alibi": True}, "--alibi"),
        ({"sinks": True}, "--sinks"),
        ({"mask": "random"}, "--mask"),
        ({"dropout": 0.5}, "--dropout"),
        ({"window": (3, 0)}, "--window"),
        ({"softcap": 2.0}, "--softcap"),
        ({"bias": True}, "--bias"),
        ({"causal": True}, "--causal"),
        ({"scale": 0.5}, "--scale"),
        ({"seqlens": (9, 5)}, "--seqlens"),
        ({"cu_seqlens": (0, 9)}, "--cu-seqlens"),
        ({"cu_seqlens": (0, 9), "cu_seqlens_k": (0, 8)}, "--cu-seqlens-k"),
    ],
)
def test_an_option_that_the_target_has_no_parameter_for_is_refused_by_name(options, flag):
    with pytest.raises(UsageFailure, match=f"plain' cannot take {flag}: it has no such parameter"):
        bound(plain, **options)


def test_alignment_is_a_convention_that_no_target_needs_to_be_told():
    assert set(bound(plain, align="top-left")) == {"q", "k", "v", "do"}


def test_packed_sequences_come_with_their_longest_lengths():
    found = bound(packs, cu_seqlens=(0, 5, 9), cu_seqlens_k=(0, 2, 9))
    assert (found["cu_seqlens_q"].tolist(), found["cu_seqlens_k"].tolist()) == ([0, 5, 9], [0, 2, 9])
    assert (found["max_seqlen_q"], found["max_seqlen_k"]) == (5, 7)
    found = bound(packs_alike, cu_seqlens=(0, 5, 9))
    assert (found["cu_seqlens"].tolist(), found["max_seqlen"]) == ([0, 5, 9], 5)
    with pytest.raises(UsageFailure, match="cannot take --cu-seqlens-k"):
        bound(packs_alike, cu_seqlens=(0, 5), cu_seqlens_k=(0, 7))
    with pytest.raises(UsageFailure, match="needs 'cu_seqlens', which this case does not have"):
        bound(packs_alike)


def test_dropout_needs_the_mask_that_was_drawn_and_not_its_probability_alone():
    with pytest.raises(UsageFailure, match="cannot take --dropout"):
        bound(drops, dropout=0.5)
    assert bound(drops)["dropout"] == 0.0


def test_a_boolean_mask_goes_to_mask_or_to_attn_mask_but_to_no_other_bias():
    assert str(bound(masks, mask="random")["mask"].dtype) == "torch.bool"
    assert str(bound(torch_like, mask="random")["attn_mask"].dtype) == "torch.bool"
    with pytest.raises(UsageFailure, match="cannot take --mask"):
        bound(torch_like, mask="random", bias=True)
    with pytest.raises(UsageFailure, match="cannot take --mask"):
        bound(additive, mask="random")
