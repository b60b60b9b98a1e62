"""What was seen becomes causes with lines and fixes, and none stands that the report's own table denies."""

from types import SimpleNamespace

import pytest

from gradprobe.diagnosis.causes import Table
from gradprobe.diagnosis.lines import of_strays
from gradprobe.diagnosis.why import FailedCheck, by_length
from gradprobe.model.intermediates import entered_by, parents_of
from gradprobe.model.layout_run import INHERITED, MATCH, MISMATCH
from gradprobe.model.memory_finding import OUTSIDE, RACE, UNWRITTEN, MemoryFinding
from gradprobe.model.report import CauseLine, Diagnosis


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


def test_what_a_kernel_left_unwritten_is_told_first_where_it_stores_the_rest(tmp_path):
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


LOAD = Diagnosis("load/k", "S1", "of other elements", 1.0, layouts=("contiguous",))
RIGHT_AT = "contiguous, it is right at --seqlen 64: it takes multiples of a block, and does not refuse other lengths"
# How far off, the verdict, what was seen of memory, what is predicted, whether others are asked for, what is known.
LENGTHS = {
    "a cause is predicted": (100.0, MISMATCH, (), {"load/k"}, False, []),
    "rounding may decide": (1.04, MISMATCH, (), (), False, []),
    "it is right in the first layout": (0.5, MATCH, ("a warning",), (), False, []),
    "nothing leaves a tensor": (100.0, MISMATCH, (), (), True, [RIGHT_AT]),
}


@pytest.mark.parametrize("name", LENGTHS)
def test_one_cause_is_left_alone_where_the_length_is_none(name):
    ratio, verdict, memory, predicted, is_asked, known = LENGTHS[name]
    comparison = SimpleNamespace(findings={"dQ": SimpleNamespace(max_ratio=ratio)})
    measured = SimpleNamespace(comparison=comparison)
    run = SimpleNamespace(layout="contiguous", memory=memory, measured=measured, verdict=verdict)
    right_at = (lambda first: "--seqlen 64") if is_asked else pytest.fail
    check = FailedCheck(None, [run], right_at=right_at, predicted=predicted)
    assert by_length(check, [LOAD]) == [LOAD]
    assert check.known == known


def finding(name, status):
    return SimpleNamespace(name=name, status=status, mismatched=int(status != MATCH))


def agreeing(found, results, **kernels):
    """What stands of what was found beside results, and by kernel what that was seen to hold."""
    rows = [
        SimpleNamespace(kernel=kernel.replace("_for_", " for "), finding=finding(*pair))
        for kernel, of in kernels.items()
        for pair in of.items()
    ]
    findings = {name: finding(name, status) for name, status in results.items()}
    shown = SimpleNamespace(rows=rows, comparison=SimpleNamespace(findings=findings))
    return Table("softmax", SimpleNamespace(shown=shown)).agreeing(found)


def value(form, *kernels):
    where = tuple(CauseLine("k.py", 7, "", kernel=kernel) for kernel in kernels)
    said = tuple(f"{kernel}, line 7: P is right" for kernel in kernels)
    wrong, right = entered_by(form), parents_of(form, "softmax")
    return Diagnosis(
        f"value/{form}", "A", "", 1.0, said, where, says_wrong=wrong, says_right=right
    )


DQ = {"dQ": MISMATCH}
OF_DS = Diagnosis("factor/dS", "A", "", 1.0, says_wrong=("dS",))
OF_BOTH = Diagnosis("factor/dQ", "A", "", 1.0, says_wrong=("dQ", "dK"))
EXPORTED = {"P": MATCH, "dS": MATCH, "dQ": MISMATCH, "dK": MISMATCH}


@pytest.mark.parametrize(
    ("found", "results", "kernels", "stand"),
    [
        # What is made of something wrong, and what is right, or right given what it is made of.
        *((value(form, "one"), DQ | {"dV": MISMATCH}, {"one": {"P": MISMATCH, "dP": MISMATCH, "dS": MISMATCH}}, False)
          for form in ("dV", "dS", "dP - delta", "dS K")),
        *((value(form, "one"), DQ | {"LSE": MATCH, "O": MATCH}, {"one": {"P": status}}, False)
          for form, status in (("P", MATCH), ("S", INHERITED), ("S - LSE", MATCH))),
        # Of dP P is no part, where the family is not lazy.
        (value("dP", "one"), DQ, {"one": {"P": MISMATCH, "dP": MISMATCH}}, True),
        (value("S", "one"), DQ, {}, True), (OF_DS, DQ, {}, True),
        (OF_DS, DQ, {"one": {"dS": MATCH}, "two": {"dS": MATCH}}, False),
        (OF_DS, DQ, {"one": {"dS": MATCH}, "two": {"dS": MISMATCH}}, True),
        (value("dS", "one"), {"P": MISMATCH, "dS": MATCH, "dQ": MISMATCH}, {}, False),
        (value("dS", "one"), {"dS": MATCH, "dQ": MATCH}, {}, False),
        (OF_DS, EXPORTED, {}, True),
    ],
)  # fmt: skip
def test_what_stands_is_what_the_table_does_not_deny(found, results, kernels, stand):
    assert agreeing([found], results, **kernels) == [found] * stand
    assert parents_of("dP", "lazy") == ("P",)


def test_a_value_of_one_kernel_is_nothing_to_another():
    seen = {"one_for_dQ": {"P": MISMATCH, "dS": INHERITED}, "two": {"P": MATCH, "dS": MISMATCH}}
    (left,) = agreeing([value("dS", "one", "two")], DQ, **seen)
    assert [where.kernel for where in left.where] == ["two"]
    assert left.evidence == ()


def test_a_value_that_is_right_where_it_was_exported_is_spoilt_on_the_way_to_what_is_wrong():
    (told,) = agreeing(
        [value("dS", "one")], {"P": MATCH, "dS": MATCH, "dQ": MISMATCH, "dK": MATCH}
    )
    assert (told.fault, told.says_wrong, told.where[0].line) == ("value/dQ", ("dQ",), 7)
    assert told.summary == "one makes a wrong dQ from line 7 on: its inputs are right"


def test_a_hypothesis_about_what_was_exported_right_gives_way_to_one_that_agrees_better():
    assert agreeing([OF_DS, OF_BOTH], EXPORTED) == [OF_BOTH]
