"""FlexAttention's modifications, by its uncompiled form on the CPU, whose backward PyTorch holds back there."""

import pytest

from gradprobe.failures import TargetFailure, UsageFailure

from .probed import probed, ratios
from .test_sdpa import BIASED, MASKED, named

FLEX = "gradprobe.adapters.flex:flex"


@pytest.fixture
def _differentiable(monkeypatch):
    monkeypatch.setattr("torch.nn.attention.flex_attention._validate_device", lambda *_: None)
    monkeypatch.setattr("torch.nn.attention.flex_attention._warn_once", lambda *_, **__: None)  # "not compiled"


OPTIONS = [*MASKED, *BIASED, {"softcap": 2.0}, {"softcap": 2.0, "bias": True, "alibi": True}, {"head_dim_v": 40}]


@pytest.mark.usefixtures("_differentiable")
@pytest.mark.parametrize("options", OPTIONS, ids=named)
def test_flex_matches_under_every_option_and_exposes_lse(options):
    report = probed(FLEX, **options)
    assert report.verdict == "match", ratios(report)
    assert {"LSE", "O", "dQ", "dK", "dV"} <= set(ratios(report))
    assert ("dBias" in ratios(report)) == ("bias" in options)


def test_flex_on_the_cpu_ends_in_the_words_of_pytorch():
    with pytest.raises(TargetFailure, match="FlexAttention does not support backward on CPU"):
        probed(FLEX)


def test_flex_takes_no_sinks():
    with pytest.raises(UsageFailure, match="cannot take --sinks"):
        probed(FLEX, sinks=True)
