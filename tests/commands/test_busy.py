"""A check tells the same alone and beside busy processes."""

import pytest

from benchmarks import busy


@pytest.mark.nightly
@pytest.mark.parametrize("name", busy.FAULTS)
def test_a_check_beside_eight_busy_processes_tells_what_it_tells_alone(name):
    assert busy.compared(name, 1, 8)


def test_what_is_compared_leaves_out_the_time_alone():
    edit = {"matches": True, "diff": "-a\n+b", "tried": 6, "seconds": 3.0}
    where = [{"file": "f", "line": 3, "code": "a"}]
    one = {"fault": "x", "explained": 1.0, "where": where, "edit": edit}
    report = {"verdict": "mismatch", "diagnoses": [one], "known": [], "notes": []}
    slower = {**report, "diagnoses": [{**one, "edit": {**edit, "seconds": 90.0}}]}
    other = {**report, "diagnoses": [{**one, "edit": {**edit, "tried": 7}}]}
    assert busy.compared_of(report) == busy.compared_of(slower) != busy.compared_of(other)
