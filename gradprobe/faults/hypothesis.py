"""Hypothesis: a fault that a target may have. Observed: what it is guessed from and tested against."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from ..model.case import Case
from ..model.intermediates import DERIVED, steps, title
from ..numerics.evidence import Measured
from ..reference import Attention, tiles
from .variant import Finish, TileScope, Variant


@dataclass(frozen=True)
class Observed:
    """One run that went wrong."""

    case: Case
    x: Attention
    """The problem, with the intended values."""
    actual: Mapping[str, Tensor]
    """What came, in float64, by intermediate."""
    expected: Mapping[str, Tensor]
    right: Mapping[str, Tensor]
    """Whether each element is right, of the intermediates in question."""
    own: tuple[str, ...]
    """The intermediates that are wrong by themselves, in dataflow order."""
    tensors: Mapping[str, Tensor]
    """The inputs and outputs as they lay in memory before the run, guard bands around them."""
    allowed: Mapping[str, Tensor]
    """The error allowed to each element, by intermediate."""
    measured: Measured
    launches: bool = True
    """Whether kernels were launched, which may misread what the target makes for itself."""

    def wrong(self, name: str) -> int:
        """How many elements of an intermediate are wrong, of those in question."""
        return int((~self.right[name]).sum()) if name in self.right else 0

    @property
    def is_square(self) -> bool:
        """Whether there are as many rows as keys."""
        return self.x.n_query == self.x.n_key

    @property
    def wrong_names(self) -> tuple[str, ...]:
        return tuple(name for name in self.right if self.wrong(name))

    def of(self, names: Collection[str]) -> Observed:
        """The same run, of which some intermediates alone are in question."""
        right = {name: self.right[name] for name in self.right if name in names}
        return replace(self, right=right, own=tuple(name for name in self.own if name in names))


SCORED = frozenset({"LSE", "P", "O", "dP", "dV", "delta"})
"""What is wrong by itself where rows see other keys, or other scores."""


@dataclass(frozen=True)
class Hypothesis:
    """One fault, with the computation that it makes: a row of the table."""

    fault: str
    """The word for scripts: "stride/do-head"; its first part is the topic of `explain`."""
    fault_class: str
    summary: str
    """One sentence, without its full stop."""
    made: Mapping[str, str] = field(default_factory=dict)
    """By intermediate, the formula that it is made by: an expression in the names of a TileScope."""
    fix: str = ""
    wrong: Collection[str] = ()
    """The intermediates that it makes wrong by themselves, where that is not what is made otherwise."""
    sees: str = "valid"
    """Which keys rows see."""
    reads: Mapping[str, Tensor | str] = field(default_factory=dict)
    """Other inputs and options, or expressions in the problem's names; and whole LSE, O or delta that are found."""
    finish: Finish | None = None
    tensor: str = ""
    """The tensor that is read or stored otherwise; "" where it is about none."""
    axes: str = ""
    """Along which axes, one letter each."""
    dtype: str = ""
    """What something is rounded to."""
    not_finite: bool = False
    """Whether the fault itself makes NaN or infinity; elsewhere NaN only marks values that nobody knows."""
    is_plain: bool = False
    """Whether it only describes the numbers that came, so that it cannot fit them by chance."""

    @property
    def kind(self) -> str:
        """The first word of its fault: "stride", "factor"."""
        return self.fault.partition("/")[0]

    @property
    def changes(self) -> frozenset[str]:
        """The intermediates that it makes wrong by themselves."""
        return frozenset(self.wrong or self.made)

    def variant(self, plain: Variant) -> Variant:
        """The computation of a problem that has this fault."""
        read, found, scope = dict[str, Any](), dict[str, Tensor](), TileScope(plain, next(tiles(plain)))
        for name, value in self.reads.items():
            of = scope.value(value) if isinstance(value, str) else value
            if isinstance(of, Tensor) and of.is_floating_point():
                of = of.double()
            if name in DERIVED:
                found[DERIVED[name]] = of
            else:
                read[name] = of
        memo = {} if read or self.sees != "valid" else plain.memo
        return replace(plain, **read, found=found, memo=memo, made=self.made, sees=self.sees, finish=self.finish)


def entered(tensor: str, family: str) -> frozenset[str]:
    """The intermediates that are wrong by themselves where an input is read wrongly.

    The forward makes O of its own P, a backward may make delta of P and dP, and one in lazy does.
    """
    if tensor == "o":
        return frozenset({"delta"})
    found = {row.name for row, step in steps(family) if title(tensor) in step.parents or tensor in step.parents}
    found |= {"O"} if "LSE" in found else set()
    found |= {"delta"} if tensor == "lse" or (family == "lazy" and found & {"P", "dP"}) else set()
    return frozenset(found)
