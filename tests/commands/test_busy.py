import pytest

from benchmarks import busy


@pytest.mark.nightly
@pytest.mark.parametrize("name", busy.FAULTS)
def test_a_check_beside_eight_busy_processes_tells_what_it_tells_alone(name):
    assert busy.compared(name, 1, 8)
