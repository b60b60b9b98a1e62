"""What was seen of memory becomes a cause whose fix is one of that kind."""

import pytest

from gradprobe.diagnosis.lines import of_strays
from gradprobe.diagnosis.why import told_once
from gradprobe.model.memory_finding import OUTSIDE, RACE, UNWRITTEN, MemoryFinding
from gradprobe.model.report import Diagnosis


@pytest.mark.parametrize(
    ("kind", "in_block", "fix"),
    [
        (RACE, True, "put a barrier between the two"),
        (RACE, False, "let one program alone write each element"),
        (OUTSIDE, True, "mask the access"),
    ],
)
def test_a_barrier_mends_a_race_within_one_block_alone(kind, in_block, fix):
    (cause,) = of_strays(
        [("contiguous", MemoryFinding(kind, "tile", "wrong", "dq_kernel", in_block=in_block))]
    )
    assert cause.fix.startswith(fix)


def test_an_access_outside_to_which_an_offset_of_32_bits_leads_is_an_offset_that_wrapped_around():
    (cause,) = of_strays(
        [
            (
                "distinct",
                MemoryFinding(OUTSIDE, "do", "far away", "k", "f", 7, access="load", wraps=True),
            )
        ]
    )
    assert (cause.fault, cause.fault_class) == ("wrap/do", "I64")
    assert cause.fix.startswith("widen the index")


def test_what_nothing_wrote_is_told_where_it_is_read_and_where_it_was_allocated():
    found = MemoryFinding(
        UNWRITTEN, "dQ", "read", "k", "f.py", 7, access="load", allocated=("host.py", 12)
    )
    (cause,) = of_strays([("distinct", found)])
    assert [(one.file, one.line) for one in cause.where] == [("f.py", 7), ("host.py", 12)]


def test_what_one_kernel_left_unwritten_is_told_first_where_that_stores_the_rest_and_is_launched(
    tmp_path,
):
    host = tmp_path / "host.py"
    host.write_text("delta = empty()\ngrid = (1,)\nfill[grid](delta)\nread[(2,)](delta)\n")
    rest = ("fill", str(host), 40)
    found = MemoryFinding(
        UNWRITTEN, "D", "read", "read", str(host), 50, allocated=(str(host), 1), rest=rest
    )
    (cause,) = of_strays([("distinct", found)])
    assert [one.line for one in cause.where] == [40, 3, 2, 50, 1, 4]


def test_beside_a_load_whose_loop_runs_on_what_ends_that_loop_is_told(tmp_path):
    loops = "    for i in range(n):\n        for start in range(0, end, step):\n            x = load(start)"
    file = tmp_path / "kernel.py"
    file.write_text(
        f"def k(n, causal):\n    end = n\n    if causal:\n        end = n + 1\n    step = 8\n{loops}\n"
    )
    for runs_on, lines in ((True, [8, 4, 2, 7]), (False, [8])):
        found = MemoryFinding(
            OUTSIDE, "k", "far", "k", str(file), 8, access="load", runs_on=runs_on
        )
        (cause,) = of_strays([("contiguous", found)])
        assert [one.line for one in cause.where] == lines
        assert ("end its loop" in cause.fix) == runs_on


def test_what_depends_on_unwritten_memory_is_told_where_that_is_read_unless_two_tensors_are():
    dq = Diagnosis("unwritten/dQ", "N2", "dQ depends on what memory held", 1.0)
    reads = [
        of_strays([("", MemoryFinding(UNWRITTEN, name, "read", "k", "f.py", 7))])[0]
        for name in ("D", "L")
    ]
    (told,), left = told_once([dq], reads[:1])
    assert ([one.line for one in told.where], left) == ([7], [])
    assert told_once([dq], reads) == ([dq], reads)
