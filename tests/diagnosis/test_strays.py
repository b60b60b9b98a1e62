"""What was seen of memory becomes a cause whose fix is one of that kind."""

import pytest

from gradprobe.diagnosis.lines import of_strays
from gradprobe.model.memory import OUTSIDE, RACE, UNWRITTEN, MemoryFinding


@pytest.mark.parametrize(
    ("kind", "in_block", "fix"),
    [
        (RACE, True, "put a barrier between the two"),
        (RACE, False, "let one program alone write each element"),
        (OUTSIDE, True, "mask the access"),
    ],
)
def test_a_barrier_mends_a_race_within_one_block_alone(kind, in_block, fix):
    (cause,) = of_strays([("contiguous", MemoryFinding(kind, "tile", "wrong", "dq_kernel", in_block=in_block))])
    assert cause.fix.startswith(fix)


def test_an_access_outside_to_which_an_offset_of_32_bits_leads_is_an_offset_that_wrapped_around():
    (cause,) = of_strays(
        [("distinct", MemoryFinding(OUTSIDE, "do", "far away", "k", "f", 7, access="load", wraps=True))]
    )
    assert (cause.fault, cause.fault_class) == ("wrap/do", "I64")
    assert cause.fix.startswith("widen the index")


def test_what_nothing_wrote_is_told_where_it_is_read_and_where_it_was_allocated():
    found = MemoryFinding(UNWRITTEN, "dQ", "read", "k", "f.py", 7, access="load", allocated=("host.py", 12))
    (cause,) = of_strays([("distinct", found)])
    assert [(one.file, one.line) for one in cause.where] == [("f.py", 7), ("host.py", 12)]
