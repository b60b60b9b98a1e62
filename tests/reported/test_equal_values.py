"""Threads that store one value to one place are no race."""

from tests.reported.conftest import SMALL


def test_a_kernel_whose_lanes_store_one_value_matches_with_a_note(check):
    ran, report = check(f"equal_values.py:backward {SMALL}")
    assert (ran.code, report["verdict"], report["warnings"]) == (0, "match", [])
    (note,) = [note for note in report["notes"] if "same value" in note]
    assert "shared width at equal_values.cu:5" in note
