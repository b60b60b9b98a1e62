"""What was seen of memory becomes a cause whose fix is one of that kind."""

import pytest

from gradprobe.diagnosis.lines import of_strays
from gradprobe.diagnosis.why import told_once
from gradprobe.model.memory_finding import OUTSIDE, RACE, UNWRITTEN, MemoryFinding
from gradprobe.model.report import Diagnosis


def cause_of(*found, **more):
    (cause,) = of_strays([("distinct", MemoryFinding(*found, **more))])
    return cause, [(one.file, one.line) for one in cause.where]


@pytest.mark.parametrize(
    ("kind", "in_block", "fix"),
    [(RACE, True, "put a barrier between the two"), (RACE, False, "let one program alone write each element"),
     (OUTSIDE, True, "mask the access")],
)  # fmt: skip
def test_a_barrier_mends_a_race_within_one_block_alone(kind, in_block, fix):
    assert cause_of(kind, "tile", "wrong", "dq_kernel", in_block=in_block)[0].fix.startswith(fix)


def test_an_access_outside_to_which_an_offset_of_32_bits_leads_is_an_offset_that_wrapped_around():
    cause, _ = cause_of(OUTSIDE, "do", "far away", "k", "f", 7, access="load", wraps=True)
    assert (cause.fault, cause.fault_class) == ("wrap/do", "I64")
    assert cause.fix.startswith("widen the index")


def test_what_nothing_wrote_is_told_where_it_is_read_and_where_it_was_allocated():
    at = {"access": "load", "allocated": ("host.py", 12)}
    _, where = cause_of(UNWRITTEN, "dQ", "read", "k", "f.py", 7, **at)
    assert where == [("f.py", 7), ("host.py", 12)]


def test_what_one_kernel_left_unwritten_is_told_first_where_that_stores_the_rest_and_is_launched(
    tmp_path,
):
    host = tmp_path / "host.py"
    host.write_text("delta = empty()\ngrid = (1,)\nfill[grid](delta)\nread[(2,)](delta)\n")
    at = {"allocated": (str(host), 1), "rest": ("fill", str(host), 40)}
    _, where = cause_of(UNWRITTEN, "D", "read", "read", str(host), 50, **at)
    assert [line for _, line in where] == [40, 3, 2, 50, 1, 4]


def test_beside_a_load_whose_loop_runs_on_what_ends_that_loop_is_told(tmp_path):
    file = tmp_path / "kernel.py"
    file.write_text(
        "def k(n, causal):\n    end = n\n    if causal:\n        end = n + 1\n    step = 8\n    for i in range(n):\n"
        "        for start in range(0, end, step):\n            x = load(start)\n"
    )
    for runs_on, lines in ((True, [8, 4, 2, 7]), (False, [8])):
        at = {"access": "load", "runs_on": runs_on}
        cause, where = cause_of(OUTSIDE, "k", "far", "k", str(file), 8, **at)
        assert [line for _, line in where] == lines
        assert ("end its loop" in cause.fix) == runs_on


def test_what_depends_on_unwritten_memory_is_told_where_that_is_read_unless_two_tensors_are():
    dq = Diagnosis("unwritten/dQ", "N2", "dQ depends on what memory held", 1.0)
    reads = [cause_of(UNWRITTEN, name, "read", "k", "f.py", 7)[0] for name in ("D", "L")]
    (told,), left = told_once([dq], reads[:1])
    assert ([one.line for one in told.where], left) == ([7], [])
    assert told_once([dq], reads) == ([dq], reads)
