"""Planted faults shrink to the case that they need, and nothing simpler fails so."""

import time

import pytest

from gradprobe.commands.shrink.shrinking import shrink
from gradprobe.inputs.history import CheckRequest
from tests.planted import flash_faults, lazy_faults
from tests.planted.planting import KERNELS

SMALL = {"batch": 2, "heads": 3, "seqlen": 36, "head_dim": 8}
LAZY, BLACK_BOX = ("lazy.py", "lazy_intermediates"), ("flash.py", "flash_black_box")
# The fault, its kernels, the words of the case that it begins from, and the fewest that are left.
SHRINK = {
    "do_read_with_q_head_stride": (
        lazy_faults, LAZY, {},
        {"batch": 1, "heads": 2, "seqlen": 1, "head_dim": 1, "bias": False, "tau": "0.0", "layout": ["do=distinct"]},
    ),
    "last_partial_key_tile_lost_in_dq": (
        # A tile of 16 keys and one more: with fewer than 16 all of dQ is 0, which has another name.
        flash_faults, BLACK_BOX, {"heads": 1, "batch": 1},
        {"batch": 1, "heads": 1, "seqlen": 17, "head_dim": 1, "runs": ["contiguous"]},
    ),
}  # fmt: skip


def shrunk_in(folder, name, monkeypatch):
    """A planted fault shrunk in a folder."""
    module, (file, function), options, _ = SHRINK[name]
    monkeypatch.chdir(folder)
    faults = module.FAULTS if module is lazy_faults else (*module.EXPORTED, *module.INSIDE)
    fault = next(fault for fault in faults if fault.name == name)
    (folder / file).write_text(fault.plant((KERNELS / file).read_text()))
    request = CheckRequest(f"{file}:{function}", None, None, SMALL | options)
    return shrink(request, most=200)


@pytest.mark.nightly
@pytest.mark.parametrize("name", SHRINK)
def test_a_planted_fault_shrinks_to_what_it_needs(name, tmp_path, monkeypatch, record_property):
    start = time.perf_counter()
    result = shrunk_in(tmp_path, name, monkeypatch)
    told = f"shrink {name}: {result.tries} tries, {time.perf_counter() - start:.1f} s"
    record_property("figure", f"{told}, {result.case.line}")
    assert result.request.options == SHRINK[name][3]
    assert result.shrunk.complete
    assert result.last.verdict == "mismatch"
