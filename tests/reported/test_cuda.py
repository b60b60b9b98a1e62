"""Kernels of .cu files, alone or with host code: what is told of lanes, of shared memory and of strides, and where."""

from tests.reported.conftest import SMALL
from tests.reported.test_causes import line_of


def test_a_kernel_whose_lanes_store_one_value_matches_with_a_note(check):
    """Threads that store one value to one place are no race."""
    ran, report = check(f"cuda_parts.py:equal_values {SMALL}")
    assert (ran.code, report["verdict"], report["warnings"]) == (0, "match", [])
    (note,) = [note for note in report["notes"] if "same value" in note]
    assert "shared width at equal_values.cu:5" in note


def test_a_sum_that_reads_lanes_outside_its_mask_is_told_with_its_line(check):
    ran, report = check(f"cuda_parts.py:lanes_missing {SMALL} --runs contiguous")
    cause = report["diagnoses"][0]
    assert (ran.code, cause["fault"]) == (1, "shuffle")
    assert "lanes 8-23 read lanes outside the mask 0x00ffffff" in cause["summary"]
    assert cause["where"][0]["line"] == 6
    assert not [note for note in report["notes"] if "no result shows it" in note]


def test_what_upper_lanes_read_for_nothing_is_a_note(check):
    ran, report = check(f"cuda_parts.py:lanes_right {SMALL} --runs contiguous")
    assert (ran.code, report["verdict"]) == (0, "match")
    notes = [note for note in report["notes"] if "lanes 8-15 read" in note]
    assert any("no result shows it" in note for note in notes)


def test_the_stride_of_another_tensor_is_found_at_its_line_where_host_code_launches_a_structure(
    check,
):
    ran, report = check(f"params_by_value.cu {SMALL}")
    verdicts = {run["layout"]: run["verdict"] for run in report["runs"]}
    assert (verdicts["contiguous"], verdicts["distinct-unit"]) == ("match", "mismatch")
    cause = report["diagnoses"][0]
    assert cause["fault"] == "stride/do-row"
    places = [where for where in cause["where"] if where["file"].endswith("params_by_value.cu")]
    assert {18, 20} & {where["line"] for where in places}
    assert report["first_mismatch"]["intermediate"] == "delta"


def test_a_read_of_shared_memory_by_the_index_of_the_thread_is_found_at_its_line(check):
    ran, report = check(f"cuda_parts.py:key_of_the_thread {SMALL} --runs contiguous")
    cause, *others = report["diagnoses"]
    assert (ran.code, cause["fault"]) == (1, "operand/dQ-row")
    assert "operand/dQ-row" not in [one["fault"] for one in others]
    assert cause["where"][0]["line"] == line_of("shared_tiles.cu", "[KEY]")
    assert "what is stored for row 0 reads k at keys 0, 8, 16" in " ".join(cause["evidence"])


def test_another_fault_of_such_a_kernel_is_not_told_as_pairs(check):
    ran, report = check(f"cuda_parts.py:factor {SMALL} --runs contiguous")
    assert ran.code == 1
    faults = [one["fault"] for one in report["diagnoses"]]
    assert not [fault for fault in faults if fault.startswith(("pairs/", "load/"))]
