"""A hypothesis is one row: its sentence, and the formula of what it makes otherwise."""

from gradprobe.faults import fault_rows
from tests.faults.plain import GRADIENTS, making, named, told


def test_a_row_with_a_formula_is_all_that_a_hypothesis_takes(monkeypatch):
    row = "if True\nwrong delta dS\ndelta/squared | delta is squared\n  delta = delta**2\n"
    planted = making("delta", lambda t: t**2)
    assert named(told(planted, exposed=GRADIENTS)) == ""
    monkeypatch.setattr(fault_rows, "FORMULAS", fault_rows.FORMULAS + row)
    cause = told(planted, exposed=GRADIENTS).diagnoses[0]
    assert (cause.fault, cause.summary, cause.is_named) == (
        "delta/squared",
        "delta is squared",
        True,
    )
