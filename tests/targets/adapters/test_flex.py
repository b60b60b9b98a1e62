"""FlexAttention in its uncompiled form, on the CPU."""

from tests.sampling import NIGHT, sampled
from tests.targets.adapters.probed import probed, ratios
from tests.targets.adapters.test_sdpa import BIASED, MASKED, PACKED, RECTANGLE, TALL

FLEX = "gradprobe.targets.adapters.flex:flex"


OPTIONS = [
    *MASKED, *BIASED, {"softcap": 2.0}, {"softcap": 2.0, "bias": True, "alibi": True},
    {"heads": 4, "kv_heads": 2, "scale": 0.7, "head_dim_v": 40},
]  # fmt: skip
# Each option of the kernel once.
EACH = [
    {"causal": True, "align": "top-left", **RECTANGLE}, {"window": "9,4", "causal": True, **TALL},
    {"mask": "dead-rows"}, {"seqlens": "0,72"}, {**PACKED, "causal": True},
    {"heads": 4, "kv_heads": 2, "scale": 0.7, "head_dim_v": 40}, {"bias": True, "bias_axes": "hmn"},
    {"softcap": 2.0, "bias": True, "alibi": True},
]  # fmt: skip


@sampled("options", OPTIONS, push=EACH)
def test_flex_matches_under_every_option_and_exposes_lse(options):
    # On every push what it does not expose is recovered, and other layouts are run, under a causal mask alone, below.
    report = probed(FLEX, recover=NIGHT, **({} if NIGHT else {"runs": ["contiguous"]}), **options)
    assert report.verdict == "match", ratios(report)
    assert {"LSE", "O", "dQ", "dK", "dV"} <= set(ratios(report))
    assert ("dBias" in ratios(report)) == ("bias" in options)


@sampled("dtype", ["float32", "float16", "bfloat16"], push=["bfloat16"])
def test_flex_matches_in_every_dtype_with_every_intermediate_seen(dtype):
    report = probed(FLEX, dtype=dtype, causal=True)
    assert report.verdict == "match", ratios(report)
    assert set(ratios(report)) == {"LSE", "P", "O", "dP", "delta", "dS", "dQ", "dK", "dV"}
