"""Checks of 16 bits in the mended interpreter are right end to end."""

from gradprobe.targets.find import find_target
from tests.cases import lazy_case
from tests.probe import probe


def test_a_bfloat16_check_matches_and_its_errors_are_those_of_bfloat16():
    case = lazy_case(dtype="bfloat16", batch=1, heads=1, seqlen=40, head_dim=8)
    report = probe(case, find_target("lazy"))
    assert report.verdict == "match"
    for _, measured in report.measured:
        findings = measured.comparison.findings
        assert len(findings) == 11
        # dV is stored in bfloat16, LSE never: as exact as float32 is.
        assert 1e-4 < findings["dV"].max_abs_err < 0.5
        assert findings["LSE"].max_abs_err < 1e-5
