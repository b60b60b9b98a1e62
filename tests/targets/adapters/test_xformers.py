"""The adapter of xFormers beside a stand-in with the package's signatures: names, shapes, classes, what it refuses."""

import sys

import pytest
import torch

from gradprobe.model.failures import TargetFailure
from tests.sampling import sampled
from tests.targets.adapters import stand_ins
from tests.targets.adapters.probed import probed, ratios
from tests.targets.adapters.test_sdpa import PACKED, RECTANGLE

XFORMERS = "gradprobe.targets.adapters.xformers:xformers"
# The options, and what xFormers is asked for: the class of its bias.
ASKED = [
    ({}, None), ({"scale": 0.7, "head_dim_v": 40}, None), ({"causal": True}, "LowerTriangularMask"),
    ({"causal": True, "align": "top-left", **RECTANGLE}, "LowerTriangularMask"),
    ({"causal": True, **RECTANGLE}, "LowerTriangularFromBottomRightMask"),
    ({"window": "9,4", **RECTANGLE}, "Tensor"), (PACKED | {"cu_seqlens": "0,20,30,71,90"}, "Tensor"),
    ({"cu_seqlens": "0,30,90", "window": "5,5"}, "Tensor"), ({"cu_seqlens": "0,30,90", "bias": True}, "Tensor"),
    ({"bias": True}, "Tensor"), ({"bias": True, "bias_axes": "bn", "causal": True, **RECTANGLE}, "Tensor"),
    ({"bias": True, "seqlen": 75}, "Tensor"), ({"mask": "dead-rows"}, "Tensor"),
]  # fmt: skip


@pytest.fixture(autouse=True)
def _installed(monkeypatch):
    for name, module in stand_ins.xformers_package().items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "gradprobe.targets.adapters.xformers", raising=False)
    stand_ins.request.clear()
    yield
    sys.modules.pop("gradprobe.targets.adapters.xformers", None)


# On every push each class, and a tensor for each reason.
@sampled("options, kind", ASKED, push=[ASKED[at] for at in (0, 2, 4, 5, 6, 8, 10, 12)])
def test_it_matches_under_every_option_and_asks_for_the_class_that_says_the_same(options, kind):
    report = probed(XFORMERS, **options)
    assert report.verdict == "match", ratios(report)
    assert {None if bias is None else type(bias).__name__ for bias in stand_ins.request} == {kind}
    assert ("dBias" in ratios(report)) == ("bias" in options)


def test_a_bias_is_passed_in_the_dtype_of_q():
    report = probed(XFORMERS, bias=True, mask="random", dtype="float16")
    assert report.verdict == "match", ratios(report)
    assert {bias.dtype for bias in stand_ins.request} == {torch.float16}


def test_grouped_heads_are_refused_since_xformers_differentiates_none():
    words = "xFormers differentiates no grouped heads; drop --kv-heads"
    with pytest.raises(TargetFailure, match=words):
        probed(XFORMERS, heads=4, kv_heads=2)
