"""FlexAttention in its uncompiled form, on the CPU."""

import pytest
import torch

from .probed import probed, ratios
from .test_sdpa import BIASED, MASKED, named

FLEX = "gradprobe.adapters.flex:flex"


OPTIONS = [
    *MASKED,
    *BIASED,
    {"softcap": 2.0},
    {"softcap": 2.0, "bias": True, "alibi": True},
    {"head_dim_v": 40},
    {"sinks": True},
    {"sinks": True, "mask": "dead-rows", "softcap": 2.0},
]


@pytest.mark.parametrize("options", OPTIONS, ids=named)
def test_flex_matches_under_every_option_and_exposes_lse(options):
    report = probed(FLEX, **options)
    assert report.verdict == "match", ratios(report)
    assert {"LSE", "O", "dQ", "dK", "dV"} <= set(ratios(report))
    assert ("dBias" in ratios(report)) == ("bias" in options)
    assert ("dSink" in ratios(report)) == ("sinks" in options)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_flex_matches_in_every_dtype_with_every_intermediate_seen(dtype):
    report = probed(FLEX, dtype=dtype, causal=True)
    assert report.verdict == "match", ratios(report)
    assert set(ratios(report)) == {"LSE", "P", "O", "dP", "delta", "dS", "dQ", "dK", "dV"}


def test_sinks_take_their_share_of_every_row_and_get_their_gradient():
    from gradprobe.adapters.flex import flex

    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, 20, 8, requires_grad=True) for _ in range(3))
    sinks = torch.randn(3, requires_grad=True)
    mask = torch.rand(2, 1, 20, 20) < 0.7
    mask[:, :, 4] = False
    results = flex(q, k, v, scale=0.3, mask=mask, sinks=sinks)
    scores = (0.3 * q.double() @ k.double().mT).masked_fill(~mask, -torch.inf)
    with_sink = torch.cat([scores, sinks.double()[:, None, None].expand(2, 3, 20, 1)], -1)
    o = with_sink.softmax(-1)[..., :-1] @ v.double()
    do = torch.randn_like(results["O"])
    found = torch.autograd.grad(results["O"], [q, k, v, sinks], do)
    expected = torch.autograd.grad(o, [q, k, v, sinks], do.double())
    # Values of order 1 in sums of at most 20 (sinks: 800) float32 terms: 1e-5 is over 80 (2) roundings of each.
    torch.testing.assert_close(results["O"].double(), o, rtol=0, atol=1e-5)
    torch.testing.assert_close(results["LSE"].double(), with_sink.logsumexp(-1), rtol=0, atol=1e-5)
    for actual, right in zip(found, expected, strict=True):
        torch.testing.assert_close(actual, right, rtol=1e-5, atol=1e-4)
