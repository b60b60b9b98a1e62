"""What is wrong is said, and nothing else."""

import pytest

from gradprobe.model.documents import report_from
from gradprobe.render.console import _sentences
from tests.reported.conftest import SMALL


def line_of(name, code):
    with open(name) as file:
        return next(number for number, line in enumerate(file, 1) if code in line)


def test_a_factor_of_rows_is_blamed_where_it_arises_and_not_on_what_is_made_of_it(check):
    ran, report = check(f"shifted_rows.py:backward --fix-budget 0 {SMALL.replace('20', '40')}")
    assert ran.code == 1
    assert report["first_mismatch"]["intermediate"] == "P"
    (cause,) = [one for one in report["diagnoses"] if one["explained"] >= 0.9]
    assert cause["fault"] == "value/S"
    assert cause["where"][0]["line"] == line_of("shifted_rows.py", "0.25")
    assert any("S is off by 0.25 in all of a row, in rows 16-31" in said for said in cause["evidence"])
    assert not {"value/dV", "value/dS"} & {one["fault"] for one in report["diagnoses"]}


def sentences(report):
    """All that is said of the first run that was looked into."""
    return [*report["known"], *(said for run in report["runs"] for said in run["inside"])]


def test_dp_and_delta_are_both_named_where_the_gradients_show_their_difference_alone(check):
    ran, report = check(f"torch_backwards.py:delta_of_keys --causal {SMALL}")
    first = report["first_mismatch"]
    assert (first["intermediate"], first["inseparable"]) == ("dP", ["delta"])
    assert ran.out.startswith("MISMATCH  dP or delta is the first wrong intermediate")
    assert ran.first_mismatches[0].startswith("FIRST MISMATCH dP or delta batch=0")
    assert "wrong by itself too" not in ran.out
    assert "dP or delta is wrong: P and dS show their difference alone" in sentences(report)


@pytest.mark.parametrize("function", ["every_third_key", "noisy_p", "warmer_rows"])
def test_no_lse_is_blamed_that_nothing_reads(function, check):
    ran, report = check(f"torch_backwards.py:{function} {SMALL}")
    assert report["first_mismatch"]["intermediate"] == "P"
    assert not [said for said in sentences(report) if "LSE" in said]
    off = {
        "every_third_key": ["P is off by 0.2 % from key to key: each key has one factor in all rows"],
        "noisy_p": [],
        "warmer_rows": ["P is off by one factor a row, 1 to 2.9"],
    }
    assert [said for said in report["runs"][0]["inside"] if said.startswith("P is off")] == off[function]


@pytest.mark.parametrize(("function", "gradient"), [("dv_of_other_rows", "dV"), ("dq_of_other_keys", "dQ")])
def test_where_one_gradient_alone_speaks_that_is_named(function, gradient, check):
    _, report = check(f"torch_backwards.py:{function} {SMALL}")
    assert report["first_mismatch"]["intermediate"] == gradient
    wrong = {one["name"] for one in report["runs"][0]["intermediates"] if one["mismatched"]}
    assert wrong == {gradient}


def test_identities_are_said_to_hold_of_what_the_target_gave_alone(check):
    ran, report = check(f"torch_backwards.py:right_dv {SMALL}")
    assert ran.code == 0
    of_target = {one["name"].split()[0] for run in report["runs"] for one in run["invariants"] if one["of"] == "target"}
    (said,) = [one for one in _sentences(report_from(report)) if one.startswith("identities hold")]
    assert set(said.removeprefix("identities hold: ").split()) == of_target
    assert "I1" in of_target
    assert not {"I2", "I3", "I4"} & of_target
