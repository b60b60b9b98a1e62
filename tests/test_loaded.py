"""How much of the project a check loads and calls: what is not needed for an answer is not imported for it."""

import pytest

from .planted.lazy_faults import HISTORICAL
from .traced import ROOT, calls_of


def counts_of(words, tmp_path):
    """Files of the project that were imported, those in which a function was called, and functions that were."""
    loaded, called = set(), set()
    for call in calls_of(words, tmp_path):
        (loaded if call.function == "<module>" else called).add(call[2:])
    return len(loaded), len({file for file, *_ in called}), len(called)


@pytest.mark.nightly
def test_a_matching_check_loads_and_calls_little(tmp_path):
    loaded, called, _ = counts_of(["check", "lazy"], tmp_path)
    assert 0 < loaded <= 124
    assert 0 < called <= 80


@pytest.mark.nightly
def test_the_first_fault_of_the_readme_calls_little(tmp_path):
    source = (ROOT / "kernels" / "triton" / "lazy.py").read_text()
    (tmp_path / "my_lazy.py").write_text(HISTORICAL.plant(source))
    loaded, called, functions = counts_of(
        ["check", "my_lazy.py:lazy_intermediates", "--heads", "4", "--causal"], tmp_path
    )
    assert 0 < loaded <= 162
    assert 0 < called <= 125
    assert 0 < functions <= 1300
