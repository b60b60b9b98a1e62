"""A: the softcap's derivative missing, or another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from torch import Tensor

from .hypothesis import Hypothesis, Observed, making
from .variant import TileScope

Slope = Callable[[Tensor, float], Tensor | float]
_FIX = "dS = P * (dP - delta) * (1 - tanh(S / softcap)^2)"


def hypotheses(seen: Observed) -> Iterator[Hypothesis]:
    """What may stand in place of 1 - tanh(S / softcap)^2, where there is a softcap."""
    if seen.x.softcap is None:
        return
    ways: tuple[tuple[str, Slope], ...] = (
        ("is missing in dS", lambda s, c: 1.0),
        ("is 1 - tanh(S / softcap), not squared", lambda s, c: 1 - (s / c).tanh()),
        ("is taken at the capped scores", lambda s, c: 1 - (s / c).tanh().tanh() ** 2),
        ("is 1 - T^2, of scores T not divided by the softcap", lambda s, c: 1 - (c * (s / c).tanh()) ** 2),
        ("is divided by the softcap once more", lambda s, c: (1 - (s / c).tanh() ** 2) / c),
        ("is applied twice", lambda s, c: (1 - (s / c).tanh() ** 2) ** 2),
    )
    for words, slope in ways:
        hook = partial(_with_slope, slope)
        yield making("softcap/derivative", "A", f"the softcap's derivative {words}", {"dS": hook}, fix=_FIX)


def _with_slope(slope: Slope, value: Tensor, scope: TileScope) -> Tensor:
    assert scope.x.softcap is not None
    by = slope(scope.x.scale * scope.q @ scope.k.mT, scope.x.softcap)
    return scope.used["P"] * (scope.used["dP"] - scope.used["delta"][..., None]) * by
