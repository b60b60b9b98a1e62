import pytest

from gradprobe.model.resolution import resolve
from gradprobe.targets.find import find_target
from tests.gpu.commands import shown
from tests.planted.lazy_faults import HISTORICAL
from tests.probe import probe

IEEE = [(dtype, "ieee") for dtype in ("float32", "float16", "bfloat16")]
pytestmark = pytest.mark.gpu
in_every_arithmetic = pytest.mark.parametrize(("dtype", "dots"), [*IEEE, ("float32", "tf32")])
# (batch, heads, length): a partial tile each, and one that fills its tiles.
SIZES = [(2, 3, 72), (2, 4, 333), (1, 4, 1024), (1, 2, 2047), (1, 2, 4096)]
SMALL = {"seqlen": 200, "head_dim": 64}
OPTIONS = [
    {"causal": True, "heads": 6, "kv_heads": 2}, {"seqlen_q": 133, "causal": True},
    {"seqlen_q": 333, "causal": True, "align": "top-left"}, {"window": (70, 5), "softcap": 3.0},
    {"bias": True}, {"bias": True, "bias_axes": "bn"}, {"bias": True, "bias_axes": "m", "softcap": 3.0},
    {"alibi": True, "causal": True}, {"mask": "random"}, {"mask": "dead-rows", "sinks": True},
    {"seqlens": (200, 0)}, {"batch": 1, "seqlen": None, "cu_seqlens": (0, 70, 70, 200), "causal": True},
    {"head_dim_v": 40, "sinks": True, "causal": True},
]  # fmt: skip
PATTERNS = ["small", "large", "negative", "offset", "lowrank"]
PADDED = {"seqlens": (200, 131), "bias_window": 300}
# Of each kernel what every value pattern is tried with.
OF_PATTERNS = [
    ("flash", {"causal": True}),
    ("lazy", PADDED),
    ("lazy", {**PADDED, "tau": (-1.0,)}),
]


def assert_match(word, record_property=lambda *_: None, **options):
    target = find_target(word)
    case = resolve({**options, "device": "cuda"}, target.family, takes_bias=True)
    report = probe(case, target)
    record_property("ratios", shown(report))
    assert report.provenance.backend == "triton"
    assert report.verdict == "match", shown(report)
    return report


@pytest.mark.parametrize("word", ["lazy", "flash"])
@pytest.mark.parametrize("head_dim", [16, 64, 80, 128])
@pytest.mark.parametrize("size", SIZES, ids=lambda size: "x".join(map(str, size)))
@in_every_arithmetic
def test_the_right_kernel_matches(dtype, dots, size, head_dim, word, record_property):
    batch, heads, seqlen = size
    of = {"bias_window": seqlen // 3} if word == "lazy" else {"causal": True}
    # Tiles that fit a GPU's shared memory.
    of |= {"block_m": 32 if head_dim > 64 and dtype == "float32" else 64, "block_n": 32}
    of |= {"batch": batch, "heads": heads, "seqlen": seqlen, "head_dim": head_dim}
    assert_match(word, record_property, dtype=dtype, dots=dots, **of)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@in_every_arithmetic
def test_the_right_kernel_matches_under_every_option(dtype, dots, options, record_property):
    assert_match("flash", record_property, **SMALL | {"dtype": dtype, "dots": dots} | options)


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize(("word", "options"), OF_PATTERNS)
@in_every_arithmetic
def test_no_value_pattern_is_accused(dtype, dots, word, options, pattern):
    assert_match(word, dtype=dtype, dots=dots, pattern=pattern, **SMALL, **options)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sums_of_4096_terms_that_tensor_cores_cut_are_not_accused(dtype):
    sizes = {"batch": 1, "heads": 2, "seqlen": 4096, "head_dim": 128}
    assert_match("flash", **sizes, dtype=dtype, pattern="offset", causal=True)


@in_every_arithmetic
def test_a_black_box_of_it_is_seen_through_and_matches(dtype, dots):
    word = "gradprobe.kernels.triton.flash:flash_black_box"
    report = assert_match(word, **SMALL, dtype=dtype, dots=dots, causal=True)
    assert {"P", "dP", "delta", "dS"} <= set(report.measured[0][1].comparison.findings)


@in_every_arithmetic
@pytest.mark.parametrize("seqlen", [72, 1024])
def test_do_read_with_q_head_stride_is_found_from_head_1_on(tmp_path, dtype, dots, seqlen):
    sizes = {"dtype": dtype, "dots": dots, "seqlen": seqlen, "head_dim": 64}
    report = HISTORICAL.probe(tmp_path, sizes=sizes, why=False)
    assert [run.verdict for run in report.runs] == ["match", "mismatch", "mismatch"]
    first = report.failing[1].first
    assert (first.intermediate, first.head) == ("dP", 1)
