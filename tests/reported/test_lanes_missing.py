"""Lanes that read lanes without a value are a fault where a result shows it, and a note where none does."""

from tests.reported.conftest import SMALL


def test_a_sum_that_reads_lanes_outside_its_mask_is_told_with_its_line(check):
    ran, report = check(f"lanes_missing.py:wrong {SMALL} --runs contiguous")
    cause = report["diagnoses"][0]
    assert (ran.code, cause["fault"]) == (1, "shuffle")
    assert "lanes 8-23 read lanes outside the mask 0x00ffffff" in cause["summary"]
    assert cause["where"][0]["line"] == 6
    assert not [note for note in report["notes"] if "no result shows it" in note]


def test_what_upper_lanes_read_for_nothing_is_a_note(check):
    ran, report = check(f"lanes_missing.py:right {SMALL} --runs contiguous")
    assert (ran.code, report["verdict"]) == (0, "match")
    assert [
        note
        for note in report["notes"]
        if "lanes 8-15 read" in note and "no result shows it" in note
    ]
