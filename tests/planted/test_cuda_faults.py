"""Faults planted in the CUDA kernels are found on the CPU in one run: the place, and what touches memory by line."""

import pytest

from tests.planted.cuda_faults import CUDA_FAULTS, probed

# On every push one of each kind of finding about memory; of wrong numbers the score tries one of each class.
OFTEN = {
    "lazy_barrier_after_the_tile_missing",
    "p_added_to_what_is_not_zeroed",
    "shared_memory_out_of_bounds",
}


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(
            fault, id=fault.name, marks=[] if fault.name in OFTEN else [pytest.mark.nightly]
        )
        for fault in CUDA_FAULTS
    ],
)
def found(request, tmp_path_factory):
    """(the fault, the report on a copy of the file with the fault in it)."""
    return request.param, probed(request.param, tmp_path_factory.mktemp("planted"))


def test_a_fault_is_found_and_placed(found):
    fault, report = found
    assert report.verdict == "mismatch"
    run, measured = report.failing
    if fault.right_on_cpu:
        assert measured.matches
        assert {stray.tensor for stray in run.memory} == {fault.array}
    else:
        assert (measured.first.intermediate, measured.first.head) == (fault.first, fault.head)
        assert fault.row in (None, measured.first.row)


def test_what_it_does_to_memory_is_named_with_the_lines(found):
    fault, report = found
    memory = report.runs[0].memory
    assert bool(memory) == bool(fault.kind)
    told = [stray for stray in memory if (stray.kind, stray.tensor) == (fault.kind, fault.array)]
    assert bool(told) == bool(fault.kind)
    for code in fault.lines:
        assert any(f"`{code}`" in stray.sentence for stray in told), [
            stray.sentence for stray in told
        ]
