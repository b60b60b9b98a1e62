"""FlexAttention in its uncompiled form, on the CPU."""

import pytest

from tests.sampling import NIGHT
from tests.targets.adapters.probed import probed, ratios
from tests.targets.adapters.test_sdpa import PACKED, RECTANGLE, TALL

FLEX = "gradprobe.targets.adapters.flex:flex"


# Each option of the kernel once.
EACH = [
    {"causal": True, "align": "top-left", **RECTANGLE}, {"window": "9,4", "causal": True, **TALL},
    {"mask": "dead-rows"}, {"seqlens": "0,72"}, {**PACKED, "causal": True},
    {"heads": 4, "kv_heads": 2, "scale": 0.7, "head_dim_v": 40}, {"bias": True, "bias_axes": "hmn"},
    {"softcap": 2.0, "bias": True, "alibi": True},
]  # fmt: skip


@pytest.mark.parametrize("options", EACH)
def test_flex_matches_under_every_option_and_exposes_lse(options):
    # On every push what it does not expose is recovered, and other layouts are run, under a causal mask alone, below.
    report = probed(FLEX, recover=NIGHT, **({} if NIGHT else {"runs": ["contiguous"]}), **options)
    assert report.verdict == "match", ratios(report)
    assert {"LSE", "O", "dQ", "dK", "dV"} <= set(ratios(report))
    assert ("dBias" in ratios(report)) == ("bias" in options)


def test_flex_matches_in_16_bits_with_every_intermediate_seen():
    report = probed(FLEX, dtype="bfloat16", causal=True)
    assert report.verdict == "match", ratios(report)
    assert set(ratios(report)) == {"LSE", "P", "O", "dP", "delta", "dS", "dQ", "dK", "dV"}
