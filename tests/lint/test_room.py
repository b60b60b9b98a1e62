"""Launches are caught in little memory, whatever a wrapper allocates by the extents of what it is given."""

import re
from pathlib import Path

import pytest

from gradprobe.model.resolution import resolve
from gradprobe.targets.find import find_target
from tests.lint.written import reading_of

FILE = Path(__file__).with_name("flat.py")
CASE = resolve({"device": "cpu"}, "softmax", takes_bias=False)


def most_mib(action):
    """What an action returns, and by how much the most memory that this process had grew meanwhile."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak is the present size again
    before = _peak()
    result = action()
    return result, _peak() - before


def _peak():
    return int(re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) / 1024


@pytest.mark.nightly
def test_a_wrapper_that_allocates_by_extents_is_read_as_it_is_and_takes_no_memory():
    reading, grown = most_mib(lambda: reading_of(find_target(f"{FILE}:backward"), CASE))
    # Its own buffer lies as dO does, so the one wrong stride is that of q.
    (finding,) = reading.findings
    assert (finding.where.code, finding.where.note) == (
        "x_ptr += b * stride_xb + h * stride_qh",
        "q.stride(1)",
    )
    # Laid out in memory it is many GiB; what torch loads for its fake tensors is some 170 MiB.
    assert grown < 400


def test_where_it_needs_values_the_strides_of_its_inputs_are_read_all_the_same():
    reading, grown = most_mib(lambda: reading_of(find_target(f"{FILE}:needs_values"), CASE))
    assert [finding.where.note for finding in reading.findings] == ["q.stride(1)"]
    assert grown < 400
