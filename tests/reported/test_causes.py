"""What is wrong is said, and nothing else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradprobe.model.documents import report_from
from gradprobe.model.layout_run import Element
from gradprobe.model.number import Number
from gradprobe.numerics.tally import RisingErrors
from gradprobe.render.console import whereabouts
from gradprobe.render.notation import size_in_words
from tests.reported.conftest import SMALL
from tests.sampling import sampled, tries


def line_of(name, code):
    with open(name) as file:
        return next(number for number, line in enumerate(file, 1) if code in line)


def test_a_factor_of_rows_is_blamed_where_it_arises_and_not_on_what_is_made_of_it(check):
    ran, report = check(f"keys_kernels.py:shifted --fix-budget 0 {SMALL.replace('20', '40')}")
    assert ran.code == 1
    assert report["first_mismatch"]["intermediate"] == "P"
    (cause,) = [one for one in report["diagnoses"] if one["explained"] >= 0.9]
    assert cause["fault"] == "value/S"
    assert cause["where"][0]["line"] == line_of("keys_kernels.py", "0.25")
    words = f"keys_kernel computes S wrongly at line {cause['where'][0]['line']}"
    assert cause["summary"].startswith(words)
    assert any("S is off by a number in all of a row" in said for said in cause["evidence"])
    assert not {"value/dV", "value/dS"} & {one["fault"] for one in report["diagnoses"]}


def sentences(report):
    """All that is said of the first run that was looked into."""
    return [*report["known"], *(said for run in report["runs"] for said in run["inside"])]


@sampled("sees", ["--causal", "--causal --window 5,0"], 1)
def test_dp_and_delta_are_both_named_where_the_gradients_show_their_difference_alone(sees, check):
    ran, report = check(f"torch_backwards.py:delta_of_keys {sees} {SMALL}")
    first = report["first_mismatch"]
    assert (first["intermediate"], first["inseparable"]) == ("dP", ["delta"])
    assert ran.out.startswith("MISMATCH  dP or delta is the first wrong intermediate")
    assert ran.first_mismatches[0].startswith("FIRST MISMATCH dP or delta batch=0")
    assert "wrong by itself too" not in ran.out
    assert "dP or delta is wrong: P and dS show their difference alone" in sentences(report)
    (cause,) = causes(report)
    assert (cause["fault"], cause["says_wrong"]) == ("delta/formula", ["delta", "dS"])
    assert cause["summary"] == "colsum(P * dP) stands for delta"
    assert cause["where"][0]["line"] == line_of("torch_backwards.py", "(p * dp).sum(dim=2")


def test_no_line_of_python_is_named_of_what_comes_to_something_else_in_each_call(check):
    _, report = check(f"torch_backwards.py:twice {SMALL}")
    assert report["verdict"] == "mismatch"
    assert not [where for one in report["diagnoses"] for where in one["where"]]


OFF = {
    "every_third_key": ["P is off by 0.2 % from key to key: each key has one factor in all rows"],
    "noisy_p": [], "warmer_rows": ["P is off by one factor a row, 1 to 2.9"],
}  # fmt: skip


@sampled("function", OFF, ["every_third_key"])
def test_no_lse_is_blamed_that_nothing_reads(function, check):
    _, report = check(f"torch_backwards.py:{function} {SMALL} --runs contiguous")
    assert report["first_mismatch"]["intermediate"] == "P"
    assert not [said for said in sentences(report) if "LSE" in said]
    told = [said for said in report["runs"][0]["inside"] if said.startswith("P is off")]
    assert told == OFF[function]
    # Nor a line of Python that does not give all that is wrong.
    assert (
        not [where for one in report["diagnoses"] for where in one["where"]]
        or function != "every_third_key"
    )


@sampled("function, gradient", [("dv_of_other_rows", "dV"), ("dq_of_other_keys", "dQ")], 1)
def test_where_one_gradient_alone_speaks_that_is_named(function, gradient, check):
    _, report = check(f"torch_backwards.py:{function} {SMALL} --runs contiguous")
    assert report["first_mismatch"]["intermediate"] == gradient
    wrong = {one["name"] for one in report["runs"][0]["intermediates"] if one["mismatched"]}
    assert wrong == {gradient}


def test_a_first_mismatch_is_wrong_by_the_order_of_the_worst(check):
    _, report = check(f"torch_backwards.py:two_errors {SMALL}")
    first, (run, *_) = report["first_mismatch"], report["runs"]
    (p,) = [one for one in run["intermediates"] if one["name"] == "P"]
    assert (first["intermediate"], first["batch"], first["head"]) == ("P", 0, 0)
    assert first["row"] == 7
    assert first["col"] >= 10
    ratio = abs(first["actual"] - first["expected"]) / first["budget"]
    assert ratio >= p["max_budget_ratio"] / 10
    head = p["heads"][0]
    assert head["rows"] == [[0, 0], [7, 19]]
    assert head["keys"] == [[0, 19]]
    (said,) = [one for one in whereabouts(report_from(report)) if one.startswith("wrong rows")]
    assert said == "wrong rows: 0, 7-19 (14 of 20); keys: 0-19 (20)"


def test_of_a_small_miss_it_is_said_how_small_it_is_in_itself(check):
    _, report = check(f"torch_backwards.py:slightly {SMALL}")
    element = report_from(report).first_mismatch
    assert element.intermediate == "dV"
    assert size_in_words(element).startswith("off by 0.0001 of values up to ")
    assert element.largest > 0.01


def element(row, error, expected):
    at = {"batch": 0, "head": 0, "row": row, "col": 0, "tile": (0, 0), "budget": Number(1.0)}
    of = {"actual": Number(expected + error), "expected": Number(expected)}
    return Element(intermediate="P", **at, **of)


@pytest.mark.parametrize(("expected", "telling"), [(0.0, 1), (200.0, 1), (201.0, 2)])
def test_an_element_that_is_off_by_a_tenth_of_itself_tells_whatever_is_worse_elsewhere(
    expected, telling
):
    wrong = [element(0, 9.0, 0.0), element(1, 20.0, expected), element(2, 1e6, 0.0)]
    assert RisingErrors().with_more(wrong).telling.row == telling


@tries(30)
@given(st.lists(st.integers(2, 10**6), min_size=1, max_size=30))
def test_the_telling_element_is_the_first_of_all_of_its_order(errors):
    every = [element(row, error, 1e9) for row, error in enumerate(errors)]
    first = next(row for row, error in enumerate(errors) if error >= max(errors) / 10)
    half = len(every) // 2
    later = RisingErrors().with_more(every[half:]).elements
    for rising in (
        RisingErrors().with_more(every),
        RisingErrors().with_more([*later, *every[:half]]),
    ):
        assert rising.telling.row == first


def statuses(report):
    """By name and kernel, the status of what the first run shows."""
    made = report["runs"][0]["intermediates"]
    return {(one["name"], one["kernel"]): one["status"] for one in made}


def wrong_in(report):
    found = statuses(report).items()
    return {name: status for (name, _), status in found if status not in ("match", "not exposed")}


def causes(report):
    first, *others = [one for one in report["diagnoses"] if one["explained"] >= 0.9]
    return [first, *(one for one in others if one["also"])]


def test_rows_that_see_nothing_are_part_of_what_is_inherited(check):
    _, report = check(f"keys_kernels.py:dead --mask dead-rows --fix-budget 0 {SMALL}")
    shown = statuses(report)
    assert shown["P", "keys_kernel"] == "mismatch"
    assert {shown["dS", "keys_kernel"], shown["dK", None], shown["dV", None]} == {"inherited"}
    assert report["first_mismatch"]["masked"] is True
    assert [one["fault"] for one in causes(report)] == ["dead/uniform"]


@sampled(
    "function, first, code",
    [("heavier", "P", "0.125 * (rows"), ("absolute", "dP", "tl.abs")],
    1,
)
def test_what_follows_of_a_wrong_value_inherits_where_delta_was_given(
    function, first, code, check
):
    _, report = check(f"keys_kernels.py:{function} --implied causal --fix-budget 0 {SMALL}")
    expected = {"P": {"P": "mismatch", "dS": "inherited", "dK": "inherited", "dV": "inherited"}}
    expected["dP"] = {"dP": "mismatch", "dS": "inherited", "dK": "inherited"}
    assert wrong_in(report) == expected[first]
    (cause,) = causes(report)
    assert cause["fault"] == f"value/{first}"
    assert cause["where"][0]["line"] == line_of("keys_kernels.py", code)
    assert cause["says_wrong"] == [first]


def test_a_delta_that_is_off_by_a_factor_is_shown_as_it_is_and_what_follows_inherits(check):
    _, report = check(f"keys_kernels.py:averaged --implied causal --fix-budget 0 {SMALL}")
    assert wrong_in(report) == {"delta": "mismatch", "dS": "inherited", "dK": "inherited"}
    (cause,) = causes(report)
    assert (cause["fault"], cause["fix"]) == ("delta/formula", "delta = rowsum(dO * O)")
