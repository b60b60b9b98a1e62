import pytest
import torch

from gradprobe.model.failures import TargetFailure
from gradprobe.targets.adapters import sdpa as adapter
from tests.sampling import sampled
from tests.targets.adapters.probed import probed, ratios

RECTANGLE = {"seqlen_q": 60, "seqlen_k": 80}
TALL = {"seqlen_q": 80, "seqlen_k": 60}
MASKED = [
    {"causal": True}, {"causal": True, **RECTANGLE}, {"causal": True, **TALL},
    {"causal": True, "align": "top-left", **RECTANGLE}, {"causal": True, "align": "top-left", **TALL},
    {"window": "9,4"}, {"window": "9,-1", "align": "top-left", **RECTANGLE}, {"window": "9,4", "causal": True, **TALL},
    {"mask": "random"}, {"mask": "dead-rows"}, {"mask": "padding"}, {"seqlens": "40,72"}, {"seqlens": "0,72"},
    {"alibi": True}, {"alibi": True, "causal": True, **RECTANGLE},
    {"heads": 4, "kv_heads": 2}, {"scale": 0.7},
]  # fmt: skip
BIASED = [{"bias": True, "bias_axes": axes} for axes in ("hmn", "bhmn", "b", "bn", "m")] + [
    {"bias": True, "causal": True, "window": "20,-1", "mask": "random", "alibi": True, "seqlens": "40,72",
     "heads": 4, "kv_heads": 2},
]  # fmt: skip


@sampled("options", [*MASKED, *BIASED, {"head_dim_v": 40}], push=3)
def test_the_math_kernel_matches_under_every_option(options):
    report = probed("sdpa-math", **options)
    assert report.verdict == "match", ratios(report)
    layouts = [run.layout for run, _ in report.measured]
    assert layouts == ["contiguous", "distinct", "do=expanded"]
    assert ("dBias" in ratios(report)) == ("bias" in options)


@sampled("options", MASKED[1::5], push=1)
def test_the_flash_kernel_of_the_cpu_matches_under_every_mask(options):
    report = probed("sdpa-flash", **options)
    assert report.verdict == "match", ratios(report)
    layouts = [run.layout for run, _ in report.measured]
    assert layouts == ["contiguous", "distinct-unit", "do=expanded"]


def test_a_kernel_that_refuses_says_why_in_one_sentence():
    with pytest.raises(TargetFailure) as refused:
        probed("sdpa-flash", head_dim_v=40)
    words = "PyTorch's flash kernel does not take this: Flash attention requires q,k,v to have the same last dimension"
    assert words in str(refused.value)
    assert "Triggered internally" not in str(refused.value)
    assert "because:" not in str(refused.value)


def test_a_kernel_that_refuses_a_layout_is_skipped_there_with_its_reason():
    skipped = {run.layout: run.skipped for run in probed("sdpa-flash").runs if run.skipped}
    assert list(skipped) == ["distinct"]
    assert "require the last dimension of the input to have stride 1" in skipped["distinct"]


def called_with(monkeypatch, **options):
    seen = {}
    original = adapter.scaled_dot_product_attention

    def spy(*tensors, **arguments):
        seen.update(arguments)
        return original(*tensors, **arguments)

    monkeypatch.setattr(adapter, "scaled_dot_product_attention", spy)
    probed("sdpa-math", layout=["q=contiguous"], **options)
    return seen


@pytest.mark.parametrize(
    ("options", "is_causal", "mask"),
    [
        ({"causal": True, "align": "top-left", **RECTANGLE}, True, None), ({}, False, None),
        ({"causal": True, **RECTANGLE}, False, torch.bool), ({"causal": True, "seqlens": "40,72"}, False, torch.bool),
    ],
)  # fmt: skip
def test_plain_causal_is_passed_as_is_causal_and_with_anything_else_as_a_mask(
    monkeypatch, options, is_causal, mask
):
    arguments = called_with(monkeypatch, **options)
    assert (arguments["is_causal"], arguments["enable_gqa"]) == (is_causal, False)
    assert getattr(arguments["attn_mask"], "dtype", None) == mask


def test_alibi_is_added_in_float32_to_scores_of_16_bits(monkeypatch):
    mask = called_with(monkeypatch, alibi=True, causal=True, dtype="float16")["attn_mask"]
    assert mask.dtype == torch.float32
    assert mask.isneginf().any()
