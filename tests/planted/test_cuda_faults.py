"""Faults planted in the CUDA kernels are found on the CPU in one run: the place, and what touches memory by line."""

from tests.planted.cuda_faults import CUDA_FAULTS, probed
from tests.sampling import sampled

# On every push one of each kind of finding about memory; of wrong numbers the score tries one of each class.
_KINDS = (
    "lazy_barrier_after_the_tile_missing",
    "p_added_to_what_is_not_zeroed",
    "shared_memory_out_of_bounds",
)
OFTEN = [fault for fault in CUDA_FAULTS if fault.name in _KINDS]


@sampled("fault", CUDA_FAULTS, push=OFTEN, ids=lambda fault: fault.name)
def test_a_fault_is_found_and_placed_and_what_it_does_to_memory_named_with_the_lines(
    fault, tmp_path
):
    report = probed(fault, tmp_path)
    assert report.verdict == "mismatch"
    run, measured = report.failing
    if fault.right_on_cpu:
        assert measured.matches
        assert {stray.tensor for stray in run.memory} == {fault.array}
    else:
        assert (measured.first.intermediate, measured.first.head) == (fault.first, fault.head)
        assert fault.row in (None, measured.first.row)
    memory = report.runs[0].memory
    told = [stray for stray in memory if (stray.kind, stray.tensor) == (fault.kind, fault.array)]
    assert bool(memory) == bool(told) == bool(fault.kind)
    said = [stray.sentence for stray in told]
    for code in fault.lines:
        assert any(f"`{code}`" in sentence for sentence in said), said
