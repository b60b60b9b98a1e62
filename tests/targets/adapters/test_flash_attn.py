"""The adapter of flash-attn beside a stand-in with the package's signatures: names, shapes, what it refuses."""

import sys

import pytest

from gradprobe.model.failures import TargetFailure
from tests.sampling import sampled
from tests.targets.adapters.probed import probed, ratios
from tests.targets.adapters.stand_ins import flash_attn_package
from tests.targets.adapters.test_sdpa import PACKED, RECTANGLE, TALL

FLASH = "gradprobe.targets.adapters.flash_attn:flash_attn"
OPTIONS = [
    {}, {"causal": True}, {"causal": True, **RECTANGLE}, {"causal": True, **TALL}, {"window": "9,4", **RECTANGLE},
    {"window": "9,4", "causal": True}, {"softcap": 2.0}, {"scale": 0.7}, {"alibi": True, **RECTANGLE},
    {"heads": 4, "kv_heads": 2, "causal": True}, {"seqlens": "40,72"}, {"seqlens": "0,72", "causal": True},
    {"cu_seqlens": "0,30,30,71,90"}, PACKED, {**PACKED, "causal": True, "alibi": True},
    {"causal": True, "align": "top-left"},
]  # fmt: skip


@pytest.fixture(autouse=True)
def _installed(monkeypatch):
    for name, module in flash_attn_package().items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "gradprobe.targets.adapters.flash_attn", raising=False)
    yield
    sys.modules.pop("gradprobe.targets.adapters.flash_attn", None)


@sampled("options", OPTIONS, push=[OPTIONS[at] for at in (2, 6, 11, 14)])
def test_it_matches_under_every_option_that_flash_attn_has(options):
    report = probed(FLASH, dtype="float16", **options)
    assert report.verdict == "match", ratios(report)
    partial = "alibi" in options and "causal" in options
    _, measured = report.measured[0]
    exported = [name for name, source in measured.trace.sources.items() if source == "exported"]
    assert exported == [*([] if partial else ["LSE"]), "O", "dQ", "dK", "dV"]


@pytest.mark.parametrize(("options", "words"), [
    ({"dtype": "float32"}, "computes in float16 and bfloat16, got torch.float32; add --dtype float16"),
    ({"causal": True, "align": "top-left", **RECTANGLE}, "diagonal ends at the bottom right; drop --align top-left"),
])  # fmt: skip
def test_what_flash_attn_lacks_is_refused_in_a_sentence(options, words):
    with pytest.raises(TargetFailure) as refused:
        probed(FLASH, **{"dtype": "float16", **options})
    assert words in str(refused.value)
