"""The kernels of kernels/triton and kernels/cuda: no false alarm with any option, at awkward sizes; their refusals."""

import pytest
import torch

from gradprobe.frontends.triton import interpreter, interpreting
from gradprobe.kernels.triton.flash import flash_intermediates
from gradprobe.targets.find import find_target
from tests.cases import lazy_case, softmax_case
from tests.probe import probe
from tests.sampling import sampled

if interpreting():
    interpreter.mend_interpreter()
DTYPES = ("float32", "float16", "bfloat16")
SMALL = {"batch": 1, "heads": 2, "head_dim": 8}
ONE_OF_EACH = {"cu_seqlens": (0, 17, 17, 33), "cu_seqlens_k": (0, 1, 20, 50)}
FLASH = [
    {"seqlen": 1, "head_dim_v": 5}, {"seqlen_q": 1, "seqlen_k": 17}, {"seqlen": 17, "head_dim": 24, "head_dim_v": 80},
    {"seqlen_q": 37, "seqlen_k": 50, "causal": True},
    {"seqlen_q": 37, "seqlen_k": 50, "causal": True, "align": "top-left"},
    {"seqlen_q": 50, "seqlen_k": 37, "causal": True},  # rows 0 to 12 see no key
    {"seqlen_q": 50, "seqlen_k": 37, "causal": True, "align": "top-left"},
    {"heads": 6, "kv_heads": 2, "causal": True}, {"heads": 3, "kv_heads": 1, "softcap": 3.0},
    {"window": (5, 3), "block_m": 16, "block_n": 64, "seqlen": 72}, {"window": (1, 1), "block_m": 32, "block_n": 16},
    {"window": (-1, 2), "seqlen_q": 50, "seqlen_k": 37}, {"window": (9, -1), "causal": True},
    {"softcap": 0.5, "causal": True, "pattern": "large"}, {"softcap": 50.0}, {"pattern": "negative", "scale": 1.0},
    {"scale": -0.5}, {"scale": 0.0},
    {"batch": 2, "seqlens": (40, 0)}, {"batch": 2, "seqlens": (17, 33), "causal": True},
]  # fmt: skip
# What the kernels in CUDA C++ do not take.
TRITON = [
    {"bias": True, "bias_axes": "mn", "softcap": 2.0}, {"bias": True, "bias_axes": "h", "batch": 2, "causal": True},
    {"bias": True, "bias_axes": "bn", "batch": 2}, {"bias": True, "bias_axes": "bhmn", "batch": 2, "kv_heads": 1},
    {"alibi": True}, {"alibi": True, "align": "top-left", "seqlen_q": 17, "seqlen_k": 50},
    {"mask": "random", "window": (-1, 0)}, {"mask": "dead-rows", "sinks": True}, {"sinks": True, "heads": 3},
    {**ONE_OF_EACH, "causal": True, "alibi": True, "bias": True, "mask": "random", "sinks": True, "window": (9, -1)},
    {**ONE_OF_EACH, "align": "top-left", "heads": 4, "kv_heads": 2, "causal": True},
    {"cu_seqlens": (0, 0, 32, 33)},
    {"heads": 4, "kv_heads": 2, "causal": True, "window": (20, 7), "softcap": 2.0, "alibi": True, "sinks": True,
     "bias": True, "mask": "random", "seqlens": (20,), "block_n": 32},
]  # fmt: skip
LAZY = [
    {"seqlen": 1, "bias_window": 1}, {"bias": False}, {"bias_window": 7}, {"bias_window": 33}, {"bias_window": 100},
    {"tau": (-1.0,)}, {"tau": (0.0,)}, {"tau": (-33.0, 5.0)}, {"batch": 2, "seqlens": (40, 0)}, {"head_dim": 24},
    {"seqlen": 72, "block_m": 64, "block_n": 16}, {"seqlen": 72, "block_m": 16, "block_n": 128},
    {"pattern": "negative", "scale": 1.0}, {"pattern": "large", "scale": 1.0},
]  # fmt: skip


def in_turns(name, options, dtypes):
    return [(name, each, dtypes[at % len(dtypes)]) for at, each in enumerate(options)]


def case_of(name, **options):
    """Every stride of every tensor another."""
    length = {} if {"seqlen_q", "cu_seqlens"} & options.keys() else {"seqlen": 40}
    options = {**SMALL, "layouts": (("all", "distinct"),), "recover": False} | length | options
    return (softmax_case if "flash" in name else lazy_case)(**options)


def assert_matches(case, name):
    report = probe(case, find_target(name), why=False)
    assert [stray.sentence for run in report.runs for stray in run.memory] == []
    assert report.verdict == "match", report.failing[1].first
    assert [run.layout for run in report.runs if run.skipped] == []
    return report


EVERY = [
    *in_turns("flash", FLASH, DTYPES), *in_turns("flash", TRITON, DTYPES), *in_turns("lazy", LAZY, DTYPES),
    *in_turns("flash-cuda", FLASH, DTYPES[:2]), *in_turns("lazy-cuda", LAZY, DTYPES[:2]),
]  # fmt: skip
# In CUDA C++, which is compiled for each dtype and size of a tile, every twentieth on every push, else every eighth.
PUSH = [each for at, each in enumerate(EVERY) if at % (20 if "cuda" in each[0] else 8) == 0]


@sampled("name, options, dtype", EVERY, push=PUSH)
def test_every_intermediate_is_right_with_every_option(name, options, dtype):
    report = assert_matches(case_of(name, dtype=dtype, **options), name)
    findings = report.runs[0].measured.comparison.findings
    assert {"P", "O", "LSE", "dP", "delta", "dS", "dQ", "dK", "dV"} <= set(findings)


on_cpu = pytest.mark.skipif(
    torch.cuda.is_available(), reason="tensors of the CPU are interpreted"
)


@on_cpu
def test_a_bias_of_minus_infinity_hides_its_keys_and_row_2_altogether():
    bias = torch.randn(17, 17)
    bias[:, 3] = bias[2] = -torch.inf
    inputs = {name: torch.randn(1, 1, 17, 8) for name in ("q", "k", "v", "do")}
    actual = flash_intermediates(**inputs, block_m=16, block_n=16, bias=bias)
    assert actual["P"][..., 3].eq(0).all()
    assert actual["LSE"][:, :, 2].eq(-torch.inf).all()
    assert all(actual[name][:, :, 2].eq(0).all() for name in ("P", "dS", "O", "dQ"))
    assert all(value.isfinite().all() for name, value in actual.items() if name != "LSE")
