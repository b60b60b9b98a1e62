import pytest

from tests.planted.cuda_faults import CUDA_FAULTS, LAID

pytestmark = pytest.mark.gpu

# An access beyond the shared memory of a block costs the process its device.
CRASHING = ("shared_memory_out_of_bounds",)


@pytest.mark.parametrize(
    "fault", [f for f in CUDA_FAULTS if f.name not in CRASHING], ids=lambda fault: fault.name
)
def test_a_fault_is_found_by_its_numbers(fault, tmp_path, record_property):
    sizes = LAID | {"device": "cuda", "seqlen": 333, "repeat": 4}
    report = fault.probe(tmp_path, sizes=sizes, why=False)
    record_property("verdict", report.verdict)
    if fault.memory == "race" and report.verdict == "match":
        pytest.skip("the race did not show in the numbers")
    first = report.failing[1].first
    assert first.intermediate == fault.first
    assert fault.memory or (first.head, fault.row in (None, first.row)) == (fault.head, True)
