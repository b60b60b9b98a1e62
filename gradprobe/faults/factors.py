"""A, H1: results that are some number times what is due, that are 0, or that stand in one another's place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import combinations

from torch import Tensor

from ..model.intermediates import GRADIENT_OF
from ..model.number import listed
from .hypothesis import Hypothesis, Observed

# A factor nearer to 1 is none; one of less leaves nothing of a result.
_NEAR, _LEAST = 1e-3, 1e-6
# Elements that a factor is measured by at least: one alone has a ratio of its own, whatever is wrong with it.
_FEWEST = 8


def zeros(seen: Observed) -> Iterator[Hypothesis]:
    """Gradients that are 0 throughout, together where there are several: one kernel may have left them."""
    found = [name for name in GRADIENT_OF.values() if name in seen.own and not bool(seen.actual[name].any())]
    if found:
        are = "are" if len(found) > 1 else "is"
        summary = f"{listed(found)} {are} 0 throughout: nothing was stored there, or None was returned"
        made = {name: f"{name} * 0" for name in found}
        yield Hypothesis(f"zero/{found[0]}", "H1", summary, made, is_plain=True)


def exchanged(seen: Observed) -> Iterator[Hypothesis]:
    """One gradient in another's place, too or instead."""
    for pair in combinations([name for name in ("dQ", "dK", "dV") if name in seen.actual], 2):
        if seen.actual[pair[0]].shape != seen.actual[pair[1]].shape:
            continue
        # Only the one that is wrong stands where the other belongs.
        here, of = sorted(pair, key=seen.wrong, reverse=True) if not all(map(seen.wrong, pair)) else pair
        places, fault = {here: of}, f"twice/{of}"
        summary = f"{of} stands in the place of {here} too"
        if seen.wrong(of):
            places[of], fault = here, f"swap/{here}-{of}"
            summary = f"{here} and {of} have changed places"
        fix, finish = "return each gradient in its own place", partial(_placed, places)
        yield Hypothesis(fault, "H1", summary, {}, fix, tuple(places), finish=finish)


def _placed(places: Mapping[str, str], values: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    return {here: values[of] for here, of in places.items()} if {*places.values()} <= values.keys() else {}


def measured(seen: Observed) -> Iterator[Hypothesis]:
    """What is wrong by itself times the factor that it shows itself, by least squares."""
    for step in filter(seen.actual.__contains__, seen.own):
        wrong = ~seen.right[step] & seen.actual[step].isfinite()
        if int(wrong.sum()) < _FEWEST:
            continue
        actual, expected = seen.actual[step][wrong], seen.expected[step][wrong]
        squares = float((expected**2).sum())
        factor = float((actual * expected).sum()) / squares if squares else 0.0
        if abs(factor) > _LEAST and abs(factor - 1) > _NEAR:
            summary = f"{step} is off by the factor {factor:.5g} throughout"
            yield Hypothesis(f"factor/{step}", "A", summary, {step: f"{step} * {factor!r}"})
