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


def table(results, **kernels):
    """What a run shows: its results, and by kernel what that was seen to hold."""
    rows = [
        SimpleNamespace(kernel=kernel.replace("_for_", " for "), finding=finding(*pair))
        for kernel, of in kernels.items()
        for pair in of.items()
    ]
    findings = {name: finding(name, status) for name, status in results.items()}
    shown = SimpleNamespace(rows=rows, comparison=SimpleNamespace(findings=findings))
    return Table("softmax", SimpleNamespace(shown=shown))


def value(form, *kernels):
    where = tuple(CauseLine("k.py", 7, "", kernel=kernel) for kernel in kernels)
    said = tuple(f"{kernel}, line 7: P is right" for kernel in kernels)
    return Diagnosis(
        f"value/{form}",
        "A",
        "",
        1.0,
        said,
        where,
        says_wrong=entered_by(form),
        says_right=parents_of(form, "softmax"),
    )


@pytest.mark.parametrize("form", ["dV", "dS", "dP - delta", "dS K"])
def test_a_value_is_not_accused_where_what_it_is_made_of_is_wrong(form):
    shown = table(
        {"dQ": MISMATCH, "dV": MISMATCH}, one={"P": MISMATCH, "dP": MISMATCH, "dS": MISMATCH}
    )
    assert shown.agreeing([value(form, "one")]) == []


@pytest.mark.parametrize("status", [MATCH, INHERITED])
@pytest.mark.parametrize("form", ["P", "S", "S - LSE"])
def test_a_value_is_not_accused_that_is_right_or_right_given_what_it_is_made_of(form, status):
    assert (
        table({"dQ": MISMATCH, "LSE": MATCH, "O": MATCH}, one={"P": status}).agreeing(
            [value(form, "one")]
        )
        == []
    )


def test_a_value_of_one_kernel_is_nothing_to_another():
    of_both = value("dS", "one", "two")
    shown = table(
        {"dQ": MISMATCH},
        one_for_dQ={"P": MISMATCH, "dS": INHERITED},
        two={"P": MATCH, "dS": MISMATCH},
    )
    (left,) = shown.agreeing([of_both])
    assert [where.kernel for where in left.where] == ["two"]
    assert left.evidence == ()


def test_dp_is_made_of_p_in_the_lazy_family_alone():
    shown = table({"dQ": MISMATCH}, one={"P": MISMATCH, "dP": MISMATCH})
    assert shown.agreeing([value("dP", "one")]) == [value("dP", "one")]
    assert parents_of("dP", "lazy") == ("P",)


def test_what_nothing_was_shown_of_denies_nothing():
    accused = [value("dS", "one"), value("S", "one"), Diagnosis("stride/do-head", "S1", "", 1.0)]
    assert table({"dQ": MISMATCH}).agreeing(accused) == accused


def test_a_hypothesis_about_what_is_right_everywhere_does_not_stand():
    factor = Diagnosis("factor/dS", "A", "", 1.0, says_wrong=("dS",))
    assert table({"dQ": MISMATCH}, one={"dS": MATCH}, two={"dS": MATCH}).agreeing([factor]) == []
    assert table({"dQ": MISMATCH}, one={"dS": MATCH}, two={"dS": MISMATCH}).agreeing(
        [factor]
    ) == [factor]


def test_a_value_that_was_exported_right_is_spoilt_on_the_way_to_what_is_wrong():
    (told,) = table({"P": MATCH, "dS": MATCH, "dQ": MISMATCH, "dK": MATCH}).agreeing(
        [value("dS", "one")]
    )
    assert (told.fault, told.says_wrong, told.says_right) == (
        "value/dQ",
        ("dQ",),
        parents_of("dS", "softmax"),
    )
    assert told.summary == "one makes a wrong dQ from line 7 on: its inputs are right"
    assert (
        table({"P": MISMATCH, "dS": MATCH, "dQ": MISMATCH}).agreeing([value("dS", "one")]) == []
    )
    assert table({"dS": MATCH, "dQ": MATCH}).agreeing([value("dS", "one")]) == []


def test_a_hypothesis_about_what_was_exported_right_gives_way_to_one_that_agrees_better():
    exported = table({"P": MATCH, "dS": MATCH, "dQ": MISMATCH, "dK": MISMATCH})
    of_ds = Diagnosis("factor/dS", "A", "", 1.0, says_wrong=("dS",))
    of_both = Diagnosis("factor/dQ", "A", "", 1.0, says_wrong=("dQ", "dK"))
    assert exported.agreeing([of_ds, of_both]) == [of_both]
    assert exported.agreeing([of_ds]) == [of_ds]


def test_a_value_that_a_kernel_spoils_after_it_was_seen_is_told_with_what_that_makes_wrong():
    spoilt = structs.replace(value("dP", "one"), says_right=("dP",))
    (told,) = table({"dQ": MATCH}, one={"P": MATCH, "dP": MATCH, "dS": MISMATCH}).agreeing(
        [spoilt]
    )
    assert (told.fault, told.says_wrong) == ("value/dS", ("dS",))
