"""What counts as growth: beyond the spread of the draws, beyond one rounding more, and never a NaN's benefit."""

import math
import random

import pytest

from gradprobe.commands.growth import ALARMS, FLOOR, LEAST, OTHER_LAWS, _quantile, growth

STEADY = [0.1] * 5


def test_the_quantile_is_that_of_the_tables_and_holds_far_out_where_alarms_are_counted():
    for share, freedom, t in ((0.025, 2, 4.3027), (0.005, 4, 4.6041), (0.001, 18, 3.6105)):
        assert _quantile(share, freedom) == pytest.approx(t, abs=5e-5)
    # P(T > t) of 2 degrees of freedom is (1 - t / sqrt(2 + t^2)) / 2, so it is 1e-8 where t is 7071.07.
    assert _quantile(1e-8, 2) == pytest.approx(7071.07, rel=1e-5)


LAWS = {
    "normal": lambda draw: math.exp(draw.gauss(0, 0.3)),
    "uniform": lambda draw: math.exp(draw.random()),
}


@pytest.mark.parametrize(("law", "draws"), [("normal", 5), ("uniform", 10)])
def test_figures_of_one_law_are_called_grown_no_more_often_than_is_allowed(law, draws):
    """A rate that can be counted: as if so few figures were compared that one in a hundred may be an alarm."""
    draw, pairs, rate = random.Random(3), 4000, 1e-2
    figures = [[LAWS[law](draw) for _ in range(draws)] for _ in range(2 * pairs)]
    few = ALARMS / OTHER_LAWS / rate
    alarms = sum(
        growth(before, after, few).verdict == "grown"
        for before, after in zip(*[iter(figures)] * 2, strict=True)
    )
    # Other laws than the normal one have their share; so far in, a uniform one has less than three times it.
    most = rate * pairs * (3 if law == "uniform" else 1)
    assert alarms <= most + 3 * math.sqrt(most)
    assert alarms >= rate * pairs / 8, "a rule that never alarms finds nothing"


def test_growth_is_told_beyond_the_spread_and_not_within_it_and_a_nan_or_something_of_nothing_grew():
    before, wide = [0.098, 0.1, 0.102, 0.099, 0.101], [0.05, 0.1, 0.2, 0.07, 0.15]
    assert growth(before, [figure * 1.3 for figure in before], 66).verdict == "grown"
    assert growth(wide, [figure * 1.3 for figure in wide], 66).verdict == "same"
    assert growth(before, before, 1).noise < growth(before, before, 1000).noise
    for wrong in (math.nan, math.inf):
        assert growth(STEADY, [0.1, 0.1, wrong, 0.1, 0.1], 66).verdict == "grown"
    assert growth([0.0] * 5, [FLOOR] * 5, 66).verdict == "same"
    assert growth([0.0] * 5, [1e-3] * 5, 66).verdict == "grown"
    geometric = growth([0.1, 0.4, 0.2, 0.2], [0.2, 0.8, 0.4, 0.4], 1).factor
    assert geometric == pytest.approx(2)


def test_without_any_spread_one_rounding_more_counts_and_less_does_not():
    assert pytest.approx(1.118, abs=1e-3) == LEAST
    for factor, verdict in (
        (1.11, "same"),
        (1.13, "grown"),
        (1 / 1.11, "same"),
        (1 / 1.13, "improved"),
    ):
        assert growth(STEADY, [0.1 * factor] * 5, 66).verdict == verdict
