"""What counts as growth: beyond the spread of the draws, beyond one rounding more, and never a NaN's benefit."""

import math
import random

import pytest

from gradprobe.commands.baseline import FLOOR, LEAST, Changes, growth, refuse_other
from gradprobe.model.failures import UsageFailure
from tests.commands.baseline.entries import entry

LAWS = {
    "normal": lambda draw: draw.gauss(0, 0.3),
    "uniform": lambda draw: draw.random(),
    "exponential": lambda draw: draw.expovariate(1.0),
}
STEADY = [0.1] * 5


@pytest.mark.parametrize("law", LAWS)
def test_figures_of_one_law_are_never_called_grown_and_a_quarter_of_the_noise_would_call_some(
    law,
):
    draw, pairs = random.Random(3), 5_000
    figures = [[math.exp(LAWS[law](draw)) for _ in range(5)] for _ in range(2 * pairs)]
    found = [growth(before, after) for before, after in zip(*[iter(figures)] * 2, strict=True)]
    assert not any(one.is_beyond for one in found)
    assert any(one.factor > one.noise**0.25 for one in found), (
        "a rule that is no wider than it must be"
    )


def test_growth_is_told_beyond_the_spread_and_not_within_it_and_a_nan_or_something_of_nothing_grew():
    before, wide = [0.098, 0.1, 0.102, 0.099, 0.101], [0.05, 0.1, 0.2, 0.07, 0.15]
    assert growth(before, [figure * 1.3 for figure in before]).is_beyond
    assert not growth(wide, [figure * 1.3 for figure in wide]).is_beyond
    for wrong in (math.nan, math.inf):
        assert growth(STEADY, [0.1, 0.1, wrong, 0.1, 0.1]).is_beyond
    assert not growth([0.0] * 5, [FLOOR] * 5).is_beyond
    assert growth([0.0] * 5, [1e-3] * 5).is_beyond
    geometric = growth([0.1, 0.4, 0.2, 0.2, 0.2], [0.2, 0.8, 0.4, 0.4, 0.4]).factor
    assert geometric == pytest.approx(2)


def test_without_any_spread_one_rounding_more_counts_and_less_does_not():
    assert pytest.approx(1.118, abs=1e-3) == LEAST
    for factor, is_grown in ((1.11, False), (1.13, True), (1 / 1.13, False)):
        assert growth(STEADY, [0.1 * factor] * 5).is_beyond == is_grown


def test_a_largest_error_alone_that_grew_fails():
    before, after = entry(), entry()
    of = after.errors["contiguous"]
    of["dQ"] = type(of["dQ"])(of["dQ"].rms, tuple(2 * figure for figure in of["dQ"].worst))
    (line,) = Changes(before, after).failing
    assert line.startswith("GREW dQ contiguous largest error 2.00x, noise up to ")


def test_a_sum_that_is_now_kept_in_16_bits_fails_though_its_wider_budget_hides_it():
    assert Changes(entry(), entry(coarser=("dK",))).failing
    assert not Changes(entry(coarser=("dK",)), entry()).failing


def test_another_backend_and_another_case_are_refused_with_a_way_out(monkeypatch):
    def told(ran, case, words):
        monkeypatch.setattr("gradprobe.commands.baseline._ran_on", lambda report: ran)
        monkeypatch.setattr("gradprobe.commands.baseline._case_of", lambda report: case)
        with pytest.raises(UsageFailure, match=words) as refused:
            refuse_other(entry(), None)
        return refused.value.way_out

    here, same = "triton-interpreter on cpu", {"family": "lazy", "seqlen_q": 72}
    words = f"it was saved by {here}, and triton on cuda has other errors"
    assert "--device cpu" in told("triton on cuda", same, words)
    other = {"family": "lazy", "seqlen_q": 80, "softcap": 2.0}
    way_out = told(here, other, "seqlen_q 72 -> 80, softcap None -> 2.0")
    assert way_out == "take its entry out of the file, and check again"
