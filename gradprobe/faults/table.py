"""Every kind of fault that a reference can predict, the likeliest first: of two that fit alike, the first is named."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

from ..model.mechanisms import gathered
from . import (
    bias_window,
    dead,
    delta,
    dropout,
    factor,
    group,
    index,
    layout,
    mask,
    operand,
    precision,
    softcap,
    store,
    stride,
    tail,
    tau,
    tile,
    wrap,
)
from .hypothesis import Hypothesis, Observed, may_show

_KINDS = (
    factor.zeros, layout.hypotheses, stride.hypotheses, index.hypotheses, store.hypotheses, wrap.hypotheses,
    mask.hypotheses, bias_window.hypotheses, delta.hypotheses, softcap.hypotheses, tau.hypotheses, dropout.hypotheses,
    dead.hypotheses, group.hypotheses, operand.hypotheses, factor.hypotheses, tile.hypotheses, tail.hypotheses,
    precision.hypotheses,
)  # fmt: skip


def hypotheses(seen: Observed) -> Iterator[Hypothesis]:
    """All that may have made a run wrong by itself."""
    for kind in _KINDS:
        name = f"faults/{kind.__module__.rpartition('.')[2]}"
        yield from gathered(name, partial(_showing, kind), seen, credit=lambda one: ("fault", one.fault))


def _showing(kind: Callable[[Observed], Iterable[Hypothesis]], seen: Observed) -> Iterator[Hypothesis]:
    return (one for one in kind(seen) if may_show(one.changes, seen))
