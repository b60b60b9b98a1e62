"""The flash kernels compiled on a GPU: no false alarm over arithmetics, lengths, dims and options."""

import pytest

from gradprobe.model.resolution import resolve
from gradprobe.targets.find import find_target
from tests.gpu.commands import shown
from tests.gpu.test_lazy_compiled import ARITHMETIC, SIZES, blocks
from tests.probe import probe

pytestmark = pytest.mark.gpu

OPTIONS = [
    {"causal": True, "heads": 6, "kv_heads": 2},
    {"seqlen_q": 133, "causal": True},
    {"seqlen_q": 333, "causal": True, "align": "top-left"},
    {"window": (70, 5), "softcap": 3.0},
    {"bias": True}, {"bias": True, "bias_axes": "bn"}, {"bias": True, "bias_axes": "m", "softcap": 3.0},
    {"alibi": True, "causal": True}, {"mask": "random"}, {"mask": "dead-rows", "sinks": True},
    {"seqlens": (200, 0)}, {"batch": 1, "seqlen": None, "cu_seqlens": (0, 70, 70, 200), "causal": True},
    {"head_dim_v": 40, "sinks": True, "causal": True},
]  # fmt: skip


def probed(target="flash", **options):
    case = resolve({**options, "device": "cuda"}, "softmax", takes_bias=True)
    return probe(case, find_target(target))


@pytest.mark.parametrize("head_dim", [16, 64, 80, 128])
@pytest.mark.parametrize("size", SIZES, ids=lambda size: "x".join(map(str, size)))
@pytest.mark.parametrize(("dtype", "dots"), ARITHMETIC)
def test_the_right_kernel_matches(dtype, dots, size, head_dim, record_property):
    batch, heads, seqlen = size
    block_m, block_n = blocks(head_dim, dtype)
    report = probed(
        batch=batch, heads=heads, seqlen=seqlen, head_dim=head_dim, dtype=dtype, dots=dots, causal=True,
        block_m=block_m, block_n=block_n,
    )  # fmt: skip
    record_property("ratios", shown(report))
    assert report.provenance.backend == "triton"
    assert report.verdict == "match", shown(report)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize(("dtype", "dots"), ARITHMETIC)
def test_the_right_kernel_matches_under_every_option(dtype, dots, options, record_property):
    report = probed(**{"seqlen": 200, "head_dim": 64, "dtype": dtype, "dots": dots, **options})
    record_property("ratios", shown(report))
    assert report.verdict == "match", shown(report)


@pytest.mark.parametrize("pattern", ["small", "large", "negative", "offset", "lowrank"])
@pytest.mark.parametrize(("dtype", "dots"), ARITHMETIC)
def test_no_value_pattern_is_accused(dtype, dots, pattern):
    report = probed(seqlen=200, head_dim=64, dtype=dtype, dots=dots, pattern=pattern, causal=True)
    assert report.verdict == "match", shown(report)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sums_of_4096_terms_that_tensor_cores_cut_are_not_accused(dtype):
    sizes = {"batch": 1, "heads": 2, "seqlen": 4096, "head_dim": 128}
    report = probed(**sizes, dtype=dtype, pattern="offset", causal=True)
    assert report.verdict == "match", shown(report)


@pytest.mark.parametrize(("dtype", "dots"), ARITHMETIC)
def test_a_black_box_of_it_is_seen_through_and_matches(dtype, dots):
    options = {"seqlen": 200, "head_dim": 64, "dtype": dtype, "dots": dots, "causal": True}
    report = probed("gradprobe.kernels.triton.flash:flash_black_box", **options)
    assert {"P", "dP", "delta", "dS"} <= set(report.measured[0][1].comparison.findings)
    assert report.verdict == "match", shown(report)
