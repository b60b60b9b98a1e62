"""Roundings: whether errors beyond the budget are those of a kernel that rounds more intermediates to 16 bits.

PyTorch's own eager attention in bfloat16 rounds S, P, dP and dS, each as often as an operation stores it. A budget that
allows for that is several times as wide, so it is given only where the errors are roundings: no head errs by more than
so many add up to, none more than another (`evenness`), and no element stands out of its head.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ..model.case import Case
from ..model.number import listed
from ..reference import Attention
from ..runtime.run import Trace
from .compare import Comparison
from .declared_precision import ROUNDED, Precision, growth_of, with_roundings
from .evenness import OFTEN, TILES, HeadScatter, excess, scatter_of, stand_out
from .rounding_spread import Scatter, rounding

Heads = Mapping[str, Sequence[HeadScatter]]
"""How the heads of each result scatter."""


@dataclass(frozen=True)
class Roundings:
    """What a kernel proves to round besides what its contract says."""

    names: tuple[str, ...]
    dtype: str
    tile: int
    """Terms between two roundings of its sums; 0 where they are float32."""

    @property
    def name(self) -> str:
        return listed(self.names)

    @property
    def sentence(self) -> str:
        growth = growth_of(self.dtype) if "S" in self.names else ""
        sums = f", and its sums every {self.tile} terms or less often" if self.tile else ""
        return (
            f"coarser than its contract: rounds {self.name} to {self.dtype}{sums} "
            f"(all heads err as that makes them, and no element stands out){growth}"
        )


def rounded_besides(
    case: Case,
    x: Attention,
    trace: Trace,
    plain: Comparison,
    heads: Heads,
    compared: Callable[[Precision], Comparison],
) -> tuple[Comparison, Roundings] | None:
    """The comparison with the narrowest budget that allows for more roundings; None where none does.

    Args:
        plain: the comparison by the contract.
        compared: compares the trace by another precision.
    """
    if (
        not heads
        or any(one.non_finite for one in plain.findings.values())
        or not _are_alike(heads, OFTEN)
    ):
        return None
    ways = [(names, 0) for names in (("S",), ("P", "dP", "dS"))] + [
        (ROUNDED, tile) for tile in TILES
    ]
    # The widest first: nearly all faults that come so far are beyond it.
    widest = compared(with_roundings(plain.precision, *ways[-1]))
    if not widest.matches:
        return None
    scatter = scatter_of(case, x, plain.precision, by_element=True)
    for names, tile in ways:
        often = OFTEN if tile else OFTEN | {"sums": 0.0}
        if _are_alike(heads, often) and not _any_stands_out(trace, plain, heads, scatter, often):
            is_widest = (names, tile) == ways[-1]
            comparison = (
                widest if is_widest else compared(with_roundings(plain.precision, names, tile))
            )
            if comparison.matches:
                return comparison, Roundings(names, case.dtype, tile)
    return None


def _are_alike(heads: Heads, often: Mapping[str, float]) -> bool:
    """Whether the errors of each result are as large as so many roundings are, alike in all heads."""
    checks = sum(map(len, heads.values()))
    for of_result in heads.values():
        for head in of_result:
            if excess(head, [one for one in of_result if one is not head], checks, often) > 1:
                return False
    return True


def _any_stands_out(
    trace: Trace,
    plain: Comparison,
    heads: Heads,
    scatter: Mapping[str, Scatter],
    often: Mapping[str, float],
) -> bool:
    """Whether an element of a head errs more than roundings that make the head's errors can."""
    checks = sum(map(len, heads.values()))
    for result, of_result in heads.items():
        expected = plain.expected[result]
        parts = scatter[result].with_stored(rounding(plain.precision, expected))
        squares = (trace.values[result].double() - expected).square()
        for head in of_result:
            of_head = {name: part[head.place] for name, part in parts.items()}
            if bool(stand_out(head, of_head, squares[head.place], checks, often).any()):
                return True
    return False
