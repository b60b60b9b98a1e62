"""Checks of 16 bits in the mended interpreter are right end to end."""

import pytest

from gradprobe.targets.find import find_target
from tests.cases import lazy_case
from tests.planted.lazy_faults import HISTORICAL
from tests.planted.planting import KERNELS
from tests.probe import probe


def test_a_bfloat16_check_matches_and_its_errors_are_those_of_bfloat16():
    report = probe(
        lazy_case(dtype="bfloat16", batch=1, heads=1, seqlen=40, head_dim=8), find_target("lazy")
    )
    assert report.verdict == "match"
    for _, measured in report.measured:
        findings = measured.comparison.findings
        assert len(findings) == 11
        # dV is stored in bfloat16, LSE never: as exact as float32 is.
        assert 1e-4 < findings["dV"].max_abs_err < 0.5
        assert findings["LSE"].max_abs_err < 1e-5


@pytest.mark.parametrize(
    "dtype", ["bfloat16", pytest.param("float16", marks=pytest.mark.nightly)]
)
def test_do_read_with_q_head_stride_is_found_in_16_bits(tmp_path, dtype):
    file = tmp_path / "planted.py"
    file.write_text(HISTORICAL.plant((KERNELS / "lazy.py").read_text()))
    case = lazy_case(dtype=dtype, batch=1, heads=2, seqlen=20, head_dim=8)
    report = probe(case, find_target(f"{file}:lazy_intermediates"), why=False)
    first = report.failing[1].first
    assert (report.verdict, first.intermediate, first.head) == ("mismatch", "dP", 1)
