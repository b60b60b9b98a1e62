"""The sieve: whether all of a run is right, told by what the budget allows at least.

One walk over the tiles that the masks leave, block by block, on the device that has the results. In float64 are the
reference and what is subtracted from it alone. What passes is right by the whole budget, since `least` is never kinder.
What does not pass is not wrong yet: `compare` judges it then.

Kept of each result of linear size are its error and what it is allowed at least, in bfloat16: by these a further run of
the same values is judged without the reference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from torch import Tensor

from ..model.assignment import OUTPUTS
from ..model.case import Case
from ..model.intermediates import DERIVED
from ..reference.attention import BY_KEY, BY_ROW, MATRICES
from ..runtime.trace import Trace
from .declared_precision import Precision

if TYPE_CHECKING:
    from .sifted import SiftedRun

LEAST_SCORES = 1 << 22
"""Scores of a case below which the whole budget costs next to nothing."""
LEAST_ELEMENTS = 1 << 25
"""Elements of q and k from which recovered results are compared so: float64 sums of all heads take too much memory."""
# What a run may be given beside the inputs of the reference.
NO_INPUTS = (*DERIVED, *OUTPUTS)


class Sieve:
    """Sifts the runs of one target; where several have the same values the reference is computed for the first.

    Args:
        several: whether more runs than one are to come.
    """

    def __init__(self, *, several: bool = True) -> None:
        self.several = several
        self._known: SiftedRun | None = None

    def sift(
        self,
        case: Case,
        values: Mapping[str, Tensor],
        trace: Trace,
        precision: Precision,
        tick: Callable[[float], None] = lambda fraction: None,
        *,
        is_part: bool = False,
    ) -> SiftedRun | None:
        """A run's results, where every element and every identity passes; None where one does not, or may not be asked.

        Args:
            values: its inputs, canonical, on the device of its results.
            is_part: whether it is one block of a large case.
        """
        if not is_part and not _is_worth_it(case, precision):
            return None
        inputs = {name: value for name, value in values.items() if name not in NO_INPUTS}
        if self._known is not None and self._known.precision == precision and _same(self._known.values, inputs):
            again = _again(self._known, trace)
            if again is not None:
                return again
        from .walks import First

        sifted = First(case, inputs, trace, precision, several=self.several, is_part=is_part).run(tick)
        self._known = sifted if self.several else None
        return sifted


def _is_worth_it(case: Case, precision: Precision) -> bool:
    """Whether a case is large, and what is rounded is not exact."""
    return case.scores >= LEAST_SCORES and not precision.exact


def is_large(
    case: Case, values: Mapping[str, Tensor], trace: Trace, precision: Precision, *, is_recovered: bool
) -> bool:
    """Whether a case is worth being compared block by block, and each of its results belongs to one block."""
    elements = values["q"].numel() + values["k"].numel()
    is_much = elements >= LEAST_ELEMENTS if is_recovered else case.scores >= LEAST_SCORES
    return is_much and not precision.exact and trace.values.keys() <= {*BY_ROW, *BY_KEY}


def _same(values: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return values.keys() == other.keys() and all(
        value is other[name] or value.equal(other[name]) for name, value in values.items()
    )


def _again(known: SiftedRun, trace: Trace) -> SiftedRun | None:
    """Another run of the same values, where it passes by what is known of them; None where that does not tell."""
    first, came = known.trace.values, trace.values
    if first.keys() != came.keys() or any(came[name].dtype != value.dtype for name, value in first.items()):
        return None
    if any(not came[name].equal(first[name]) for name in MATRICES if name in came):
        return None
    if all(came[name].equal(value) for name, value in first.items()):
        return replace(known, trace=trace)
    from .walks import PassedRun

    return PassedRun(known, trace).run()
