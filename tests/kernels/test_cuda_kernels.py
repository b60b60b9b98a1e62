"""The CUDA kernels of kernels/cuda: no false alarm with any option, at awkward sizes, in any memory layout."""

from itertools import product

import pytest
import torch

from gradprobe.targets.adapters import flash_cuda, lazy_cuda
from gradprobe.targets.find import find_target
from tests.cases import lazy_case, softmax_case
from tests.probe import probe
from tests.sampling import sampled

DTYPES = ["float32", "float16"]
ADAPTERS = {"flash": flash_cuda, "lazy": lazy_cuda}
SMALL = {"batch": 2, "heads": 2, "head_dim": 16}
FLASH = [
    {"seqlen": 64}, {"causal": True},
    {"seqlen_q": 37, "seqlen_k": 50, "causal": True},
    {"seqlen_q": 37, "seqlen_k": 50, "causal": True, "align": "top-left"},
    {"seqlen_q": 50, "seqlen_k": 37, "causal": True},  # rows 0 to 12 see no key
    {"seqlen_q": 50, "seqlen_k": 37, "causal": True, "align": "top-left"},
    {"batch": 1, "heads": 6, "kv_heads": 2, "causal": True}, {"batch": 1, "heads": 3, "kv_heads": 1},
    {"window": (5, 3)}, {"window": (-1, 2), "seqlen_q": 50, "seqlen_k": 37}, {"window": (9, -1), "causal": True},
    {"softcap": 2.0, "causal": True}, {"seqlens": (40, 0)}, {"seqlens": (17, 33), "causal": True, "softcap": 3.0},
    {"head_dim": 24, "head_dim_v": 8, "scale": 0.7}, {"block_m": 16, "block_n": 64, "window": (20, 4)},
]  # fmt: skip
LAZY = [
    {"seqlen": 64}, {"bias": False}, {"bias_window": 7}, {"bias_window": 33}, {"bias_window": 100},
    {"tau": (-1.0,)}, {"tau": (0.5, -0.4)}, {"seqlens": (40, 0)}, {"seqlens": (17, 33)}, {"head_dim": 24},
    {"block_m": 64, "block_n": 16},
]  # fmt: skip
# Every stride of every tensor another.
DISTINCT = (("all", "distinct"),)
LAYOUTS = [
    ("all", "contiguous"),
    ("do", "expanded"),
    ("all", "blhd"),
    ("all", "packed"),
    ("all", "offset"),
]


def in_turns(options, numbers):
    """Some of the options, in one dtype or the other."""
    return [(DTYPES[at % 2], options[number]) for at, number in enumerate(numbers)]


def case_of(family, **options):
    length = {} if "seqlen_q" in options else {"seqlen": 40}
    return (softmax_case if family == "flash" else lazy_case)(
        **SMALL | length | {"layouts": DISTINCT} | options
    )


def of_one_batch(options):
    """The options with one batch where they are not about several."""
    return options if "seqlens" in options else {"batch": 1} | options


def assert_matches(case, name):
    report = probe(case, find_target(name))
    assert [stray.sentence for run in report.runs for stray in run.memory] == []
    assert report.provenance.backend == ("cuda" if case.device == "cuda" else "cuda-on-cpu")
    assert report.verdict == "match", report.failing[1].first
    assert [run.layout for run in report.runs if run.skipped] == []


# On every push each option once.
@sampled("dtype, options", product(DTYPES, FLASH), push=in_turns(FLASH, (3, 4, 6, 10, 13, 14, 15)))
def test_flash_matches_with_every_option(dtype, options):
    assert_matches(case_of("flash", dtype=dtype, **of_one_batch(options)), "flash-cuda")


@sampled("dtype, options", product(DTYPES, LAZY), push=in_turns(LAZY, (1, 3, 5, 7, 9, 10)))
def test_lazy_matches_with_every_option(dtype, options):
    assert_matches(case_of("lazy", dtype=dtype, **of_one_batch(options)), "lazy-cuda")


@sampled(
    "family, layout", product(ADAPTERS, LAYOUTS), push=[("flash", LAYOUTS[1]), ("lazy", LAYOUTS[3])]
)
def test_every_layout_matches(family, layout):
    assert_matches(case_of(family, layouts=(layout,)), f"{family}-cuda")


@pytest.mark.parametrize(
    "function", ["flash_cuda:flash_cuda_backward", "lazy_cuda:lazy_cuda_backward"]
)
def test_a_backward_takes_o_and_lse_of_another_forward_in_any_strides(function):
    assert_matches(case_of(function.partition("_")[0]), f"gradprobe.targets.adapters.{function}")


def test_an_lse_that_is_given_is_used_and_not_the_forwards():
    q, k, v, do = torch.randn(4, 1, 1, 17, 8).unbind(0)
    lse = torch.full((1, 1, 17), torch.inf)
    assert flash_cuda.flash_cuda_backward(q, k, v, do, scale=1.0, lse=lse)["P"].eq(0).all()
    assert (
        lazy_cuda.lazy_cuda_backward(q, k, v, do, scale=1.0, tau=torch.zeros(1), lse=lse)["P"]
        .eq(0)
        .all()
    )


PLANTED = [
    ("flash", "h * stride_doh;", "h * stride_qh;", "dP"),
    ("flash", "p * (dp - tile.delta[i])", "p * dp", "dS"),
    ("flash", "scale * dk[r][c]", "dk[r][c]", "dK"),
    ("lazy", "z > 0.0f", "p > 0.0f", "dP"),
    ("lazy", "dp / (float)(m + 1)", "dp / (float)(n + 1)", "dTau"),
    ("lazy", "dbias_parts_ptr[distance] += sum", "dbias_parts_ptr[distance] = sum", "dBias"),
]


@sampled("family, right, wrong, first", PLANTED, push=1)
def test_a_fault_planted_in_the_source_is_found_where_it_is(
    tmp_path, monkeypatch, family, right, wrong, first
):
    source = ADAPTERS[family].SOURCE.read_text(encoding="utf-8")
    assert right in source
    (tmp_path / "planted.cu").write_text(source.replace(right, wrong), encoding="utf-8")
    monkeypatch.setattr(ADAPTERS[family], "SOURCE", tmp_path / "planted.cu")
    report = probe(case_of(family), find_target(f"{family}-cuda"), why=False)
    assert report.verdict == "mismatch"
    assert report.failing[1].first.intermediate == first


REFUSED = [
    ({"q": torch.zeros(2, 17, 8)}, r"q must be \[B, H, M, D\], got shape \(2, 17, 8\)"),
    (
        {"q": torch.zeros(1, 2, 17, 8).bfloat16()},
        "q must be float32 or float16, got torch.bfloat16",
    ),
    (
        {"k": torch.zeros(1, 2, 17, 9)},
        r"k must be \[B, Hkv, N, D\] = \(1, 2, 17, 8\) beside q .* got \(1, 2, 17, 9\)",
    ),
    (
        {"v": torch.zeros(1, 2, 17, 8).half()},
        "v must have q's dtype, torch.float32, got torch.float16",
    ),
    (
        {"do": torch.zeros(1, 2, 16, 8)},
        r"do must be \[B, H, M, Dv\] = \(1, 2, 17, 8\) .* got \(1, 2, 16, 8\)",
    ),
    ({"lse": torch.zeros(1, 2, 17).double()}, "lse must be float32, got torch.float64"),
    ({"o": torch.zeros(1, 2, 17, 9)}, r"o must be \[B, H, M, Dv\] = .* got \(1, 2, 17, 9\)"),
    (
        {name: torch.zeros(1, 3, 17, 8) for name in "kv"},
        "heads of k and v must divide those of q, got 3 and 2",
    ),
    ({"seqlens": torch.tensor([18])}, r"seqlens must lie in 0 to 17, got \[18\]"),
    (
        {"seqlens": torch.tensor([1.0])},
        r"seqlens must be \[B\] = \(1,\) integers, got shape \(1,\) torch.float32",
    ),
    ({"align": "left"}, "align must be bottom-right or top-left, got 'left'"),
    (
        {"window": (-2, 0)},
        r"window must be \(left, right\), each -1 \(no limit\) or more, got \(-2, 0\)",
    ),
    ({"softcap": 0.0}, "softcap must be above 0, got 0.0"),
    ({"block_m": 24}, "block_m must be a multiple of 16 up to 256, got 24"),
    (
        {"dq": torch.zeros(1, 2, 17, 9)},
        r"dq must match q, \(1, 2, 17, 8\) torch.float32, got \(1, 2, 17, 9\)",
    ),
    (
        {"dv": torch.zeros(1, 2, 1, 8).expand(1, 2, 17, 8)},
        "dv must hold each element apart, got stride 0 among",
    ),
]


@pytest.mark.parametrize(
    ("given", "words"), REFUSED, ids=lambda value: ",".join(value) if type(value) is dict else ""
)
def test_flash_refuses_what_does_not_fit_together_by_name(given, words):
    right = {name: torch.zeros(1, 2, 17, 8) for name in ("q", "k", "v", "do")}
    with pytest.raises(ValueError, match=words):
        flash_cuda.flash_cuda_backward(**right | {"scale": 1.0} | given)


@pytest.mark.parametrize(("given", "words"), [
    ({"q": torch.zeros(1, 2, 17, 8).double()}, "q must be float32 or float16, got torch.float64"),
    ({"v": torch.zeros(1, 2, 17, 9)}, r"v must match q, \(1, 2, 17, 8\) torch.float32, got \(1, 2, 17, 9\)"),
    ({"tau": torch.zeros(3)}, r"tau must be \[H\] = \(2,\), got shape \(3,\)"),
    ({"bias": torch.zeros(3, 9)}, r"bias must be \[H, W\] with H = 2, got shape \(3, 9\)"),
    ({"lse": torch.zeros(1, 2, 16)}, r"lse must be \[B, H, L\] = \(1, 2, 17\) float32, got \(1, 2, 16\)"),
    ({"block_n": 0}, "block_n must be a multiple of 16 up to 256, got 0"),
], ids=lambda value: ",".join(value) if type(value) is dict else "")  # fmt: skip
def test_lazy_refuses_what_does_not_fit_together_by_name(given, words):
    right = {name: torch.zeros(1, 2, 17, 8) for name in ("q", "k", "v", "do")}
    with pytest.raises(ValueError, match=words):
        lazy_cuda.lazy_cuda_backward(**right | {"scale": 1.0, "tau": torch.zeros(2)} | given)
