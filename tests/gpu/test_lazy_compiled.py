"""The lazy kernels compiled on a GPU: no false alarm over arithmetics, lengths and dims; planted faults found."""

import pytest

from gradprobe.targets.find import find_target
from tests.cases import lazy_case
from tests.gpu.commands import shown
from tests.planted.lazy_faults import FAULTS, HISTORICAL
from tests.planted.planting import probe_planted
from tests.probe import probe

pytestmark = pytest.mark.gpu

ARITHMETIC = [("float32", "ieee"), ("float32", "tf32"), ("float16", "ieee"), ("bfloat16", "ieee")]
# (batch, heads, length): a partial tile each, and one that fills its tiles.
SIZES = [(2, 3, 72), (2, 4, 333), (1, 4, 1024), (1, 2, 2047), (1, 2, 4096)]


def blocks(head_dim, dtype):
    """Tiles that fit a GPU's shared memory."""
    return (32, 32) if head_dim > 64 and dtype == "float32" else (64, 32)


@pytest.mark.parametrize("head_dim", [16, 64, 80, 128])
@pytest.mark.parametrize("size", SIZES, ids=lambda size: "x".join(map(str, size)))
@pytest.mark.parametrize(("dtype", "dots"), ARITHMETIC)
def test_the_right_kernel_matches(dtype, dots, size, head_dim, record_property):
    batch, heads, seqlen = size
    block_m, block_n = blocks(head_dim, dtype)
    case = lazy_case(
        batch=batch, heads=heads, seqlen=seqlen, head_dim=head_dim, dtype=dtype, dots=dots,
        bias_window=seqlen // 3, block_m=block_m, block_n=block_n,
    )  # fmt: skip
    report = probe(case, find_target("lazy"))
    record_property("ratios", shown(report))
    assert report.provenance.backend == "triton"
    assert report.verdict == "match", shown(report)


@pytest.mark.parametrize("pattern", ["normal", "small", "large", "negative", "offset", "lowrank"])
@pytest.mark.parametrize("tau", [None, (-1.0,)], ids=["default", "minus-one"])
@pytest.mark.parametrize(("dtype", "dots"), ARITHMETIC)
def test_no_value_pattern_is_accused(dtype, dots, tau, pattern):
    sizes = {"seqlen": 200, "head_dim": 64, "seqlens": (200, 131), "bias_window": 300}
    case = lazy_case(**sizes, dtype=dtype, dots=dots, pattern=pattern, tau=tau)
    report = probe(case, find_target("lazy"))
    assert report.verdict == "match", shown(report)


def probed_planted(fault, folder, **options):
    case = lazy_case(**fault.options, **options)
    return probe_planted(fault, folder, "lazy.py", "lazy_intermediates", case)


@pytest.mark.parametrize(("dtype", "dots"), ARITHMETIC)
@pytest.mark.parametrize("seqlen", [72, 1024])
def test_do_read_with_q_head_stride_is_found_from_head_1_on(tmp_path, dtype, dots, seqlen):
    case = {"dtype": dtype, "dots": dots, "seqlen": seqlen, "head_dim": 64}
    report = probed_planted(HISTORICAL, tmp_path, **case)
    assert [run.verdict for run in report.runs] == ["match", "mismatch", "mismatch"]
    first = report.failing[1].first
    assert (first.intermediate, first.head) == ("dP", 1)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_every_planted_fault_is_found_in_tf32(tmp_path, fault):
    report = probed_planted(fault, tmp_path, dots="tf32")
    assert report.verdict == "mismatch"
    first = report.failing[1].first
    assert first.intermediate == fault.first
    # Which program stores last, and so which head shows it, is the device's affair.
    assert first.head == fault.head or fault.name == "dtau_stored_instead_of_added"
