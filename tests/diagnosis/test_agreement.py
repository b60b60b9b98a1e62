"""No diagnosis stands that the report's own table denies."""

from types import SimpleNamespace

import pytest
from msgspec import structs

from gradprobe.diagnosis.causes import Table
from gradprobe.model.intermediates import entered_by, parents_of
from gradprobe.model.layout_run import INHERITED, MATCH, MISMATCH
from gradprobe.model.report import CauseLine, Diagnosis


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


def test_a_value_that_is_right_where_it_was_seen_is_spoilt_on_the_way_to_what_is_wrong():
    found = [value("dS", "one")]
    (told,) = agreeing(found, {"P": MATCH, "dS": MATCH, "dQ": MISMATCH, "dK": MATCH})
    assert (told.fault, told.says_wrong) == ("value/dQ", ("dQ",))
    assert told.says_right == parents_of("dS", "softmax")
    assert told.summary == "one makes a wrong dQ from line 7 on: its inputs are right"
    spoilt, held = (
        structs.replace(value("dP", "one"), says_right=("dP",)),
        {"P": MATCH, "dP": MATCH},
    )
    (told,) = agreeing([spoilt], {"dQ": MATCH}, one=held | {"dS": MISMATCH})
    assert (told.fault, told.says_wrong) == ("value/dS", ("dS",))


def test_a_hypothesis_about_what_was_exported_right_gives_way_to_one_that_agrees_better():
    assert agreeing([OF_DS, OF_BOTH], EXPORTED) == [OF_BOTH]
