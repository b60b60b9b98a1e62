"""A fault that a target may have, and the run that it is tested against."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from ..model.case import Case
from ..model.intermediates import DERIVED, steps, title
from ..numerics.declared_precision import Tensors
from ..numerics.evidence import MeasuredRun
from ..reference import Attention, tiles
from .variant import Finish, TileScope, Variant


@dataclass(frozen=True)
class WrongRun:
    """One run that went wrong; tensors in float64, by intermediate."""

    case: Case
    x: Attention
    actual: Tensors
    expected: Tensors
    right: Tensors  # of the intermediates in question
    own: tuple[str, ...]  # wrong by themselves, in dataflow order
    tensors: Tensors
    allowed: Tensors
    measured: MeasuredRun
    launches: bool = True

    def wrong(self, name: str) -> int:
        return int((~self.right[name]).sum()) if name in self.right else 0

    @property
    def wrong_names(self) -> tuple[str, ...]:
        return tuple(filter(self.wrong, self.right))

    def of(self, names: Collection[str]) -> WrongRun:
        right = {name: self.right[name] for name in self.right if name in names}
        return replace(self, right=right, own=tuple(name for name in self.own if name in names))


# By the first word of a fault; others are of the algebra.
_CLASSES = {
    "stride": "S1", "store": "S1", "layout": "S2", "index": "S3", "mask": "M1", "tile": "M2", "tail": "M3",
    "accumulation": "ACC", "dropout": "DRP", "precision": "PREC", "swap": "H1", "twice": "H1", "zero": "H1",
    "dead": "N1",
}  # fmt: skip


@dataclass(frozen=True)
class Hypothesis:
    # As docs/explain.md heads: "stride/do-head".
    fault: str
    summary: str
    # By intermediate, its formula in the names of a TileScope.
    made: Mapping[str, str] = field(default_factory=dict)
    fix: str = ""
    wrong: Collection[str] = ()  # by itself, where that is not `made`
    sees: str = "valid"
    # Other inputs and options, or their formulas; whole LSE, O or delta that are found.
    reads: Mapping[str, Tensor | str] = field(default_factory=dict)
    finish: Finish | None = None
    tensor: str = ""  # that is read or stored otherwise
    axes: str = ""  # one letter each
    # It only describes what came, so that it cannot fit by chance.
    is_plain: bool = False

    @property
    def kind(self) -> str:
        return self.fault.partition("/")[0]

    @property
    def fault_class(self) -> str:
        return _CLASSES.get(self.kind, "A")

    @property
    def not_finite(self) -> bool:
        return self.fault == "dead/nan" or self.finish is not None

    @property
    def changes(self) -> frozenset[str]:
        return frozenset(self.wrong or self.made)

    def variant(self, plain: Variant) -> Variant:
        read, scope = dict[str, Any](), TileScope(plain, next(tiles(plain)))
        for name, value in self.reads.items():
            of = scope.value(value) if isinstance(value, str) else value
            is_float = isinstance(of, Tensor) and of.is_floating_point()
            read[name] = of.double() if is_float else of
        found = {DERIVED[name]: read.pop(name) for name in DERIVED if name in read}
        memo = {} if read or self.sees != "valid" else plain.memo
        read |= {"found": found, "made": self.made, "sees": self.sees, "finish": self.finish}
        return replace(plain, memo=memo, **read)


def entered(tensor: str, family: str) -> frozenset[str]:
    """O and delta may be of its own P."""
    if tensor == "o":
        return frozenset({"delta"})
    read = {title(tensor), tensor}
    found = {row.name for row, step in steps(family) if read.intersection(step.parents)}
    found |= {"O"} if "LSE" in found else set()
    is_of_p = family == "lazy" and not found.isdisjoint(("P", "dP"))
    return frozenset(found | ({"delta"} if tensor == "lse" or is_of_p else set()))
