"""Hypothesis: a fault that a target may have. Observed: what it is guessed from and tested against."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from operator import methodcaller
from typing import Any

from torch import Tensor

from ..model.case import Case
from ..model.intermediates import names, reached, steps, title
from ..numerics.evidence import Measured
from ..reference import Attention
from .variant import Alter, Finish, Hook, Rule


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
    def wrong_names(self) -> tuple[str, ...]:
        return tuple(name for name in self.right if self.wrong(name))

    def of(self, names: Collection[str]) -> Observed:
        """The same run, of which some intermediates alone are in question."""
        right = {name: self.right[name] for name in self.right if name in names}
        return replace(self, right=right, own=tuple(name for name in self.own if name in names))


@dataclass(frozen=True)
class Hypothesis:
    """One fault, with the computation that it makes: a row of the table."""

    fault: str
    """The word for scripts: "stride/do-head"; its first part is the topic of `explain`."""
    fault_class: str
    summary: str
    """One sentence, without its full stop."""
    alter: Alter
    changes: frozenset[str]
    """The intermediates that it makes wrong by themselves."""
    fix: str = ""
    tensor: str = ""
    """The tensor that is read or stored otherwise; "" where it is about none."""
    axes: str = ""
    """Along which axes, one letter each."""
    dtype: str = ""
    """What something is rounded to."""
    taken: tuple[int, ...] = ()
    """The strides that are taken in place of its own."""
    not_finite: bool = False
    """Whether the fault itself makes NaN or infinity; elsewhere NaN only marks values that nobody knows."""
    is_plain: bool = False
    """Whether it only describes the numbers that came, so that it cannot fit them by chance."""

    @property
    def kind(self) -> str:
        """The first word of its fault: "stride", "factor"."""
        return self.fault.partition("/")[0]


def making(
    fault: str,
    fault_class: str,
    summary: str,
    hooks: Mapping[str, Hook],
    fix: str = "",
    changes: Collection[str] = (),
    **about: Any,
) -> Hypothesis:
    """The fault that intermediates are made otherwise.

    Args:
        changes: what is wrong by itself, where that is not what is made otherwise.
        about: further fields.
    """
    alter, changed = methodcaller("hooked", hooks), frozenset(changes or hooks)
    return Hypothesis(fault, fault_class, summary, alter, changed, fix, **about)


def hiding(fault: str, summary: str, rule: Rule, fix: str = "", changes: Collection[str] = ()) -> Hypothesis:
    """The fault that rows see other keys."""
    return Hypothesis(fault, "M1", summary, methodcaller("seeing", rule), frozenset(changes or SCORED), fix)


def storing(
    fault: str, fault_class: str, summary: str, names: Collection[str], finish: Finish, fix: str = "", **about: Any
) -> Hypothesis:
    """The fault that a caller gets other results under some names."""
    return Hypothesis(fault, fault_class, summary, methodcaller("finished", finish), frozenset(names), fix, **about)


def may_show(changes: frozenset[str], seen: Observed) -> bool:
    """Whether a fault that changes these intermediates may be what made a run wrong by itself.

    A kernel computes P, dP and dS anew and may hand on their errors where what another one exposes is right.
    """
    return not set(reached(changes, seen.case.family)).isdisjoint(seen.own)


AXES = {"b": "batch", "h": "head", "g": "head", "m": "row", "n": "row", "d": "dim", "e": "dim", "w": "distance"}
"""Words for axes."""
EVERYTHING = frozenset(names())
SCORED = frozenset({"LSE", "P", "O", "dP", "dV", "delta"})
"""What is wrong by itself where rows see other keys, or other scores."""
SIZES = (16, 32, 64, 128)
"""Of tiles, beside those of the case."""


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
