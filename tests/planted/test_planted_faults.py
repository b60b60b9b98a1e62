"""Every planted fault gets the verdict and the place that its record says, and nothing else is blamed."""

import pytest

from tests.cases import lazy_case
from tests.planted.lazy_faults import FAULTS, HISTORICAL
from tests.planted.planting import assert_as_recorded, probe_planted


def probed(fault, folder, **sizes):
    return probe_planted(
        fault, folder, "lazy.py", "lazy_intermediates", lazy_case(**fault.options, **sizes)
    )


# On every push the historical one has a test of its own, below, and the score tries one of each class.
@pytest.mark.nightly
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_planted_fault_is_found_and_placed(fault, tmp_path):
    assert_as_recorded(fault, probed(fault, tmp_path))


def test_the_planted_faults_are_at_least_12_over_five_classes():
    assert len(FAULTS) >= 12
    assert len({fault.fault_class for fault in FAULTS}) >= 5


def test_do_read_with_q_head_stride_never_blames_head_0(tmp_path):
    report = probed(HISTORICAL, tmp_path, batch=1, seqlen=40, head_dim=8)
    assert_as_recorded(HISTORICAL, report)
    for run, measured in report.measured:
        for name, finding in measured.comparison.findings.items():
            assert int(finding.wrong[:, 0].sum()) == 0, (run.layout, name)
        assert measured.comparison.findings["P"].status == "match"
