"""The row of the thread in place of the row of the loop in a shared tile is found at its line, and nothing else is."""

from pathlib import Path

from tests.reported.conftest import SMALL


def test_a_read_of_shared_memory_by_the_index_of_the_thread_is_found_at_its_line(check):
    ran, report = check(f"shared_tiles.py:key_of_the_thread {SMALL} --runs contiguous")
    causes = [one for one in report["diagnoses"] if one["fault"] == "operand/dQ-row"]
    assert (ran.code, len(causes)) == (1, 1)
    assert report["diagnoses"][0] == causes[0]
    line = 1 + next(
        n
        for n, text in enumerate(Path("shared_tiles.cu").read_text().splitlines())
        if "[KEY]" in text
    )
    assert causes[0]["where"][0]["line"] == line
    assert "what is stored for row 0 reads k at keys 0, 8, 16" in " ".join(causes[0]["evidence"])


def test_another_fault_of_such_a_kernel_is_not_told_as_pairs(check):
    ran, report = check(f"shared_tiles.py:factor {SMALL} --runs contiguous")
    assert ran.code == 1
    assert not [one for one in report["diagnoses"] if one["fault"].startswith(("pairs/", "load/"))]
