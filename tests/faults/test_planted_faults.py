"""Every planted fault gets the verdict and the place that its record says, and nothing else is blamed."""

import pytest

from gradprobe.probe import probe
from gradprobe.targets.find import find_target
from gradprobe.verdict import Report
from tests.cases import lazy_case

from .lazy_faults import FAULTS, HISTORICAL
from .planting import LAZY, Planted


def probe_planted(fault: Planted, folder, **options) -> Report:
    file = folder / f"{fault.name}.py"
    file.write_text(fault.plant(LAZY.read_text()))
    target = find_target(f"{file}:lazy_intermediates")
    return probe(lazy_case(**fault.options | options), target)


@pytest.fixture(params=FAULTS, ids=lambda fault: fault.name)
def found(request, tmp_path):
    return request.param, probe_planted(request.param, tmp_path)


def test_a_planted_fault_is_found_and_placed(found):
    fault, report = found
    assert report.verdict == "mismatch"
    assert {run.layout for run in report.runs if run.verdict == "match"} == fault.passes
    measured = report.failing[1]
    first = measured.first
    assert (first.intermediate, first.place.batch, first.place.head) == (fault.first, fault.batch, fault.head)
    assert fault.row is None or first.place.row == fault.row
    statuses = {name: finding.status for name, finding in measured.comparison.findings.items()}
    assert {name for name, status in statuses.items() if status == "mismatch"} == fault.own
    assert {name for name, status in statuses.items() if status == "inherited"} == fault.inherited


def test_the_planted_faults_are_at_least_12_over_five_classes():
    assert len(FAULTS) >= 12
    assert len({fault.fault_class for fault in FAULTS}) >= 5


def test_do_read_with_q_head_stride_never_blames_head_0(tmp_path):
    report = probe_planted(HISTORICAL, tmp_path)
    for run, measured in report.measured:
        for name, finding in measured.comparison.findings.items():
            assert int(finding.wrong[:, 0].sum()) == 0, (run.layout, name)
        assert measured.comparison.findings["P"].status == "match"
