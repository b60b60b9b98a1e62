import pytest

from gradprobe.inputs.options import parse
from gradprobe.model.failures import TargetFailure
from gradprobe.model.resolution import resolve
from gradprobe.targets.find import find_target
from tests.gpu.commands import shown
from tests.probe import probe

pytestmark = pytest.mark.gpu

# Shapes that every fused kernel has: a partial tile, more keys than rows, grouped heads, a long one.
SHAPES = [
    {"seqlen": 72, "head_dim": 64},
    {"seqlen": 333, "head_dim": 128},
    {"seqlen_q": 200, "seqlen_k": 333, "head_dim": 64},
    {"heads": 8, "kv_heads": 2, "seqlen": 256, "head_dim": 64},
    {"batch": 1, "heads": 2, "seqlen": 2048, "head_dim": 64},
]
MASKS = [
    {"causal": True, "seqlen_q": 200, "seqlen_k": 333}, {"window": "40,8"}, {"mask": "random"}, {"mask": "dead-rows"},
    {"seqlens": "40,200"},
]  # fmt: skip
SIZE = {"seqlen": 200, "head_dim": 64}
# Of these, those that leave rows without a key.
DEAD = [{"mask": "dead-rows"}, {"seqlens": "40,200"}]


def probed(word, **options):
    target = find_target(word)
    how = {"takes_bias": "bias" in target.takes, "packs": target.packs}
    return probe(resolve({**parse(options), "device": "cuda"}, target.family, **how), target)


def named(options):
    return ",".join(f"{name}={value}" for name, value in options.items())


def assert_match(record_property, word, **options):
    report = probed(word, **options)
    record_property("ratios", shown(report))
    assert report.verdict == "match", shown(report)
    assert any(run.layout == "contiguous" for run, _ in report.measured)


@pytest.mark.parametrize("shape", SHAPES, ids=named)
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    "kernel", ["sdpa", "sdpa-math", "sdpa-flash", "sdpa-efficient", "sdpa-cudnn"]
)
def test_each_kernel_of_sdpa_matches_in_16_bits(record_property, kernel, dtype, causal, shape):
    if kernel == "sdpa-efficient" and "kv_heads" in shape:
        pytest.skip("this kernel takes no grouped heads")
    if kernel in ("sdpa-flash", "sdpa-cudnn") and causal and "seqlen_q" in shape:
        pytest.skip("this kernel takes no causal rectangle")
    # The diagonal from the top left is the one that the fused kernels have.
    diagonal = {"causal": True, "align": "top-left"} if causal else {}
    assert_match(record_property, kernel, dtype=dtype, **diagonal, **shape)


@pytest.mark.parametrize("options", MASKS, ids=named)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("kernel", ["sdpa", "sdpa-math", "sdpa-efficient"])
def test_a_kernel_that_takes_masks_matches_under_each(record_property, kernel, dtype, options):
    if kernel == "sdpa" and options in DEAD:
        pytest.skip("the kernel that PyTorch chooses itself here is wrong: the next test")
    own = {"seqlen": None} if "seqlen_q" in options else {}
    assert_match(record_property, kernel, **SIZE | {"dtype": dtype} | own | options)


@pytest.mark.parametrize("options", DEAD, ids=named)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_kernel_that_pytorch_chooses_is_wrong_in_dead_rows(record_property, dtype, options):
    report = probed("sdpa", dtype=dtype, **SIZE | options)
    record_property("ratios", shown(report))
    assert report.verdict == "mismatch"
    first = report.failing[1].first
    dead = first.row % 7 == 3 if "mask" in options else first.row >= 40
    assert dead, first


@pytest.mark.parametrize(
    ("kernel", "axes"),
    [
        *(("sdpa-math", axes) for axes in ("hmn", "bhmn", "b", "bn", "m")),
        *((kernel, axes) for kernel in ("sdpa", "sdpa-efficient") for axes in ("hmn", "bhmn", "bn")),
    ],
)  # fmt: skip
def test_the_gradient_of_a_bias_matches_however_it_is_broadcast(record_property, kernel, axes):
    assert_match(record_property, kernel, dtype="bfloat16", **SIZE, bias=True, bias_axes=axes)


@pytest.mark.parametrize(("kernel", "options", "words"), [
    ("sdpa-flash", {"mask": "random", "dtype": "float16"}, "PyTorch's flash kernel does not take this: "),
    ("sdpa-flash", {"dtype": "float32"}, "PyTorch's flash kernel does not take this: "),
    ("sdpa-cudnn", {"dtype": "float32"}, "PyTorch's cuDNN kernel does not take this: "),
], ids=["flash-mask", "flash-float32", "cudnn-float32"])  # fmt: skip
def test_what_a_kernel_does_not_take_is_told_with_the_reasons_of_pytorch(kernel, options, words):
    with pytest.raises(TargetFailure) as refused:
        probed(kernel, head_dim=64, **options)
    assert words in str(refused.value)
    assert "gives no reason" not in str(refused.value)
