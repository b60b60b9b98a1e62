"""Planted faults shrink to the case that they need, and nothing simpler fails so."""

import time

import pytest

from gradprobe.commands.shrink.shrinking import shrink
from gradprobe.inputs.history import CheckRequest
from tests.planted.flash_faults import INSIDE
from tests.planted.planting import KERNELS


@pytest.mark.nightly
def test_a_planted_fault_shrinks_to_what_it_needs(tmp_path, monkeypatch, record_property):
    """A tile of 16 keys and one more: with fewer than 16 all of dQ is 0, which has another name."""
    start = time.perf_counter()
    monkeypatch.chdir(tmp_path)
    (fault,) = (fault for fault in INSIDE if fault.name == "last_partial_key_tile_lost_in_dq")
    (tmp_path / "flash.py").write_text(fault.plant((KERNELS / "flash.py").read_text()))
    words = {"batch": 1, "heads": 1, "seqlen": 36, "head_dim": 8}
    request = CheckRequest("flash.py:flash_black_box", None, None, words)
    result = shrink(request, most=200)
    told = f"shrink: {result.tries} tries, {time.perf_counter() - start:.1f} s"
    record_property("figure", f"{told}, {result.case.line}")
    least = {"batch": 1, "heads": 1, "seqlen": 17, "head_dim": 1, "runs": ["contiguous"]}
    assert result.request.options == least
    assert result.shrunk.complete
    assert result.last.verdict == "mismatch"
