import pytest
import torch

from gradprobe.inputs.draw import draw
from gradprobe.targets.adapters.cuda_kernels import flash_cuda, lazy_cuda
from gradprobe.targets.find import find_target
from tests.cases import lazy_case, softmax_case
from tests.gpu.commands import shown
from tests.probe import probe

pytestmark = pytest.mark.gpu

DTYPES = ["float32", "float16"]
SIZES = [(2, 4, 333), (1, 4, 1024)]
FLASH = [
    {}, {"heads": 6, "kv_heads": 2, "causal": True}, {"seqlen_q": 133, "seqlen_k": 200, "causal": True},
    {"seqlen_q": 200, "seqlen_k": 133, "causal": True},
    {"seqlen_q": 333, "seqlen_k": 200, "causal": True, "align": "top-left"},
    {"window": (70, 5), "softcap": 3.0}, {"seqlens": (200, 0)}, {"head_dim_v": 40, "causal": True},
    {"block_m": 64, "block_n": 64, "causal": True}, {"head_dim": 80, "causal": True},
]  # fmt: skip
LAZY = [
    {"bias": False},
    {"tau": (-1.0,)},
    {"seqlens": (200, 131)},
    {"bias_window": 300},
    {"head_dim": 80},
]


def assert_matches(case, name, record_property):
    report = probe(case, find_target(name))
    record_property("ratios", shown(report))
    assert report.provenance.backend == "cuda"
    assert report.verdict == "match", shown(report)


@pytest.mark.parametrize("name", ["flash-cuda", "lazy-cuda"])
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("size", SIZES, ids=lambda size: "x".join(map(str, size)))
@pytest.mark.parametrize("dtype", DTYPES)
def test_it_matches_at_real_sizes(name, dtype, size, head_dim, record_property):
    sizes = dict(zip(("batch", "heads", "seqlen"), size, strict=True))
    sizes |= {"head_dim": head_dim, "dtype": dtype}
    of_flash, of_lazy = {"causal": True}, {"bias_window": size[2] // 3}
    is_flash = name == "flash-cuda"
    case = softmax_case(**sizes, **of_flash) if is_flash else lazy_case(**sizes, **of_lazy)
    assert_matches(case, name, record_property)


@pytest.mark.parametrize(
    ("name", "case_of", "options"),
    [*(("flash-cuda", softmax_case, one) for one in FLASH), *(("lazy-cuda", lazy_case, one) for one in LAZY)],
    ids=lambda value: getattr(value, "__name__", str(value)),
)  # fmt: skip
@pytest.mark.parametrize("dtype", DTYPES)
def test_it_matches_with_every_option(dtype, name, case_of, options, record_property):
    length = {} if "seqlen_q" in options else {"seqlen": 200}
    case = case_of(**{"head_dim": 64, "dtype": dtype} | length | options)
    assert_matches(case, name, record_property)


@pytest.mark.parametrize(
    ("function", "case_of"), [(flash_cuda, softmax_case), (lazy_cuda, lazy_case)]
)
def test_two_runs_give_the_same_bits(function, case_of):
    case = case_of(batch=2, heads=4, seqlen=333, head_dim=64, causal=True)
    inputs = {name: value.cuda() for name, value in draw(case).items()}
    first, second = (function(**inputs, scale=case.scale) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)
