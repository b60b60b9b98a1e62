"""Evidence: what each exported result of the one-hot problems says, beside the same of the ordinary run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from ..judging.compare import Comparison
from ..judging.measured import Measured
from ..judging.tally import Finding
from ..running.trace import Trace
from .recover import SHOWN, Recovered
from .recovery import RECOVERABLE, Recovery

if TYPE_CHECKING:
    from torch import Tensor

RIGHT, COARSE, WRONG = range(3)
"""Within the contract's budget; within that of the coarser arithmetic that such a kernel may have; beyond."""


class Measure(Protocol):
    """Compares a trace with the reference on the values that it came of."""

    def __call__(
        self, values: Mapping[str, Tensor], trace: Trace, recovery: Recovery | None = None, *, coarse: bool = False
    ) -> Measured:
        """What it comes to; by the arithmetic that is coarser than the contract, if `coarse`."""
        ...


@dataclass(frozen=True)
class Evidence:
    """What one exported result says of one intermediate: dV of P, dQ of dS, dK of dS, and each of itself.

    Every element of it came from the target, so it is exported as that of the ordinary run is. Only, its sums have one
    term where the ordinary ones have many: a coarser arithmetic than the contract's shows whole here, and averages out
    there. So what the ordinary run has right is wrong here beyond that arithmetic alone. And where the ordinary run has
    it more wrong than this, this does not reach what is wrong there.
    """

    name: str
    through: str
    grade: int
    beside: int
    """The grade of the exported result in the ordinary run."""
    whole: int
    """The grade of the exported result here, its other elements included."""
    ratio: float
    """The worst error as a multiple of what the contract allows."""

    @property
    def is_wrong(self) -> bool:
        return self.grade == WRONG or self.grade == self.beside == COARSE

    @property
    def is_coarse(self) -> bool:
        """Whether it is held to the coarser arithmetic, and keeps it."""
        return self.grade == COARSE and not self.is_wrong

    @property
    def is_right_beside(self) -> bool:
        return self.beside == RIGHT

    @property
    def is_reached(self) -> bool:
        """Whether what is wrong in the ordinary run shows here too."""
        return self.beside <= self.whole

    @property
    def note(self) -> str:
        """The disagreement of one that is coarse, in words."""
        seen = f"{self.name}, seen through {self.through}," if self.name != self.through else f"{self.name} of them"
        return (
            f"in one-hot problems {seen} errs by {self.ratio:.3g}x what is allowed, and with the case's own values "
            f"{self.through} is right: rather a coarser arithmetic than a wrong kernel"
        )


class Scales:
    """What weighs the results of one-hot problems against those of the ordinary run."""

    def __init__(self, measure: Measure, own: Measured, values: Mapping[str, Tensor]) -> None:
        self._measure, self._own, self._values = measure, own, values
        self._beside: dict[str, int] = {}

    def all(self, recovered: Recovered, measured: Measured) -> list[Evidence]:
        """What every exported result says.

        Args:
            measured: the recovered trace, compared.
        """
        findings, trace = measured.comparison.findings, recovered.trace
        exported = [
            self._evidence(recovered, name, name, trace.values[name], finding)
            for name, finding in findings.items()
            if trace.sources[name] != "recovered"
        ]
        whole = {one.name: one.grade for one in exported}
        known = {name: finding for name, finding in findings.items() if trace.sources[name] == "recovered"}
        return exported + self.shown(recovered, whole, known)

    def shown(
        self, recovered: Recovered, whole: Mapping[str, int] = {}, findings: Mapping[str, Finding] = {}
    ) -> list[Evidence]:
        """What each gradient shows of its intermediate."""
        found = []
        for name, value in recovered.by.items():
            compared = findings if value is recovered.trace.values.get(SHOWN[name]) else {}
            found.append(self.of(recovered, name, value, whole.get(name, RIGHT), compared))
        return found

    def of(
        self, recovered: Recovered, through: str, value: Tensor, whole: int = RIGHT, known: Mapping[str, Finding] = {}
    ) -> Evidence:
        """What a gradient shows of its intermediate.

        Args:
            value: how it shows it.
            whole: the grade of the gradient itself.
            known: where the value was compared already.
        """
        name = SHOWN[through]
        finding = known.get(name) or self._alone(recovered, name, value).findings[name]
        one = self._evidence(recovered, name, through, value, finding)
        return replace(one, whole=max(one.grade, whole))

    def _evidence(self, recovered: Recovered, name: str, through: str, value: Tensor, finding: Finding) -> Evidence:
        grade = RIGHT
        if finding.mismatched:
            grade = COARSE if self._alone(recovered, name, value, coarse=True).matches else WRONG
        return Evidence(name, through, grade, self.beside(through), grade, finding.max_ratio)

    def beside(self, name: str) -> int:
        """The grade of a result of the ordinary run."""
        if name not in self._beside:
            finding = self._own.comparison.findings.get(name)
            grade = RIGHT
            if finding is not None and finding.mismatched:
                alone = self._measure(self._values, _only(name, self._own.trace.values[name]), coarse=True)
                grade = COARSE if alone.comparison.matches else WRONG
            self._beside[name] = grade
        return self._beside[name]

    def _alone(self, recovered: Recovered, name: str, value: Tensor, *, coarse: bool = False) -> Comparison:
        # What a gradient shows was read, even where the target exposes it besides.
        read = value is not recovered.trace.values.get(name) or recovered.trace.sources[name] == "recovered"
        recovery = replace(recovered.recovery, names=frozenset(RECOVERABLE if read else ()))
        return self._measure(recovered.values, _only(name, value), recovery, coarse=coarse).comparison


def _only(name: str, value: Tensor) -> Trace:
    return Trace({name: value}, {name: "exported"})
