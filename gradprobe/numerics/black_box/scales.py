"""Scales: what each exported result of the one-hot problems says, and how it stands beside the first run's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from msgspec import structs
from torch import Tensor

from ...model.intermediates import MATRIX_OF, names
from ...model.layout_run import MISMATCH, Element
from ...runtime.run import Trace
from ..budget import RECOVERABLE
from ..compare import Comparison, promoted
from ..evidence import MeasuredRun
from ..locate import locate
from ..tally import Finding, RisingErrors
from .recover import QUOTIENTS, RecoveredValues

RIGHT, COARSE, WRONG = range(3)
"""Within the contract's budget; within that of the coarser arithmetic that such a kernel may have; beyond."""


Measure = Callable[..., MeasuredRun]
"""Compares a trace with the reference: given the values that it came of, the trace, how its intermediates were
recovered, and by `coarse` whether to judge by the arithmetic that is coarser than the contract."""


@dataclass(frozen=True)
class ResultEvidence:
    """What one exported result says of one intermediate: dV of P, dQ of dS, dK of dS, and each of itself.

    Its sums have one term where the ordinary ones have many: a coarser arithmetic than the contract's shows whole here,
    and averages out there. So what the ordinary run has right is wrong here beyond that arithmetic alone. And where the
    ordinary run has it more wrong than this, this does not reach what is wrong there.
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
    def is_shown(self) -> bool:
        """Whether it is of an intermediate that a gradient shows, not of the result itself."""
        return self.name != self.through

    @property
    def is_wrong(self) -> bool:
        return self.grade == WRONG or self.grade == self.beside == COARSE

    @property
    def is_coarse(self) -> bool:
        """Whether it is held to the coarser arithmetic, and keeps it."""
        return self.grade == COARSE and not self.is_wrong

    @property
    def is_reached(self) -> bool:
        """Whether what is wrong in the ordinary run shows here too."""
        return self.beside <= self.whole

    @property
    def note(self) -> str:
        """The disagreement of one that is coarse, in words."""
        seen = f", seen through {self.through}," if self.is_shown else " of them"
        return (
            f"in one-hot problems {self.name}{seen} errs by {self.ratio:.3g}x what is allowed, and with the case's own "
            f"values {self.through} is right: rather a coarser arithmetic than a wrong kernel"
        )


class Scales:
    """What weighs the results of one-hot problems against those of the ordinary run."""

    def __init__(self, measure: Measure, own: MeasuredRun, values: Mapping[str, Tensor]) -> None:
        self._measure, self._own, self._values = measure, own, values
        self._beside: dict[str, int] = {}

    def all(self, recovered: RecoveredValues, measured: MeasuredRun) -> list[ResultEvidence]:
        """What every exported result says.

        Args:
            measured: the recovered trace, compared.
        """
        findings, values = measured.comparison.findings, recovered.trace.values
        exported = [
            self._evidence(recovered, name, name, values[name], findings[name])
            for name in findings
            if not recovered.is_read(name)
        ]
        return exported + self.shown(recovered, exported, findings)

    def shown(
        self,
        recovered: RecoveredValues,
        before: list[ResultEvidence],
        known: Mapping[str, Finding] = {},
    ) -> list[ResultEvidence]:
        """What each gradient shows of its intermediate.

        Args:
            before: what is known of how wrong the gradients are.
            known: the findings of what was recovered, where that was compared.
        """
        whole, found = {one.through: one.whole for one in before}, []
        for through, value in recovered.by.items():
            evidence = self.of(recovered, through, value, known)
            found.append(replace(evidence, whole=max(evidence.grade, whole.get(through, RIGHT))))
        return found

    def of(
        self,
        recovered: RecoveredValues,
        through: str,
        value: Tensor,
        known: Mapping[str, Finding] = {},
    ) -> ResultEvidence:
        """What a gradient shows of its intermediate, by the value that it shows."""
        name = MATRIX_OF[through]
        is_own = recovered.is_read(name) and value is recovered.trace.values.get(name)
        findings = (
            known if is_own and name in known else self._alone(recovered, name, value).findings
        )
        return self._evidence(recovered, name, through, value, findings[name])

    def _evidence(
        self, recovered: RecoveredValues, name: str, through: str, value: Tensor, finding: Finding
    ) -> ResultEvidence:
        grade = RIGHT
        if finding.mismatched:
            grade = COARSE if self._alone(recovered, name, value, coarse=True).matches else WRONG
        beside = self._beside_of(through)
        return ResultEvidence(name, through, grade, beside, grade, finding.max_ratio)

    def _beside_of(self, name: str) -> int:
        """The grade of a result of the ordinary run."""
        if name not in self._beside:
            self._beside[name], finding = RIGHT, self._own.comparison.findings.get(name)
            if finding is not None and finding.mismatched:
                came = _only(name, self._own.trace.values[name])
                alone = self._measure(self._values, came, coarse=True)
                self._beside[name] = COARSE if alone.comparison.matches else WRONG
        return self._beside[name]

    def _alone(
        self, recovered: RecoveredValues, name: str, value: Tensor, *, coarse: bool = False
    ) -> Comparison:
        # What a gradient shows was read, even where the target exposes it besides.
        is_read = value is not recovered.trace.values.get(name) or recovered.is_read(name)
        recovery = replace(recovered.recovery, names=frozenset(RECOVERABLE if is_read else ()))
        alone = self._measure(recovered.values, _only(name, value), recovery, coarse=coarse)
        return alone.comparison


def _only(name: str, value: Tensor) -> Trace:
    return Trace({name: value}, {name: "exported"})


def joined(own: MeasuredRun, inner: MeasuredRun) -> MeasuredRun:
    """What a report shows of a run that was looked into: what the target exposed as it came.

    Where that is wrong, and inherits it in the one-hot problems from parents that the ordinary run does not show, it
    is called inherited.
    """
    of_own, of_inner = own.comparison.findings, inner.comparison.findings
    findings = {
        name: _blamed(of_own[name], of_inner.get(name)) if name in of_own else of_inner[name]
        for name in names()
        if name in of_own or name in of_inner
    }
    comparison = replace(
        own.comparison,
        findings=findings,
        absent=tuple(name for name in own.comparison.absent if name not in findings),
        reading={name: most for name, most in inner.comparison.reading.items() if name not in of_own},
    )  # fmt: skip
    sources = {name: (own if name in of_own else inner).trace.sources[name] for name in findings}
    trace, first = replace(own.trace, sources=sources), _first(own, inner, findings)
    return replace(own, trace=trace, comparison=promoted(comparison), first=first)


def _first(
    own: MeasuredRun, inner: MeasuredRun, findings: Mapping[str, Finding]
) -> Element | None:
    """The first mismatch, in the run whose it is."""
    name = next((name for name, finding in findings.items() if finding.status == MISMATCH), None)
    if name is None:
        return None
    run, of = (own, findings) if name in own.trace.values else (inner, inner.comparison.findings)
    first = locate(run.x, run.trace, replace(run.comparison, findings={name: of[name]}))
    if first and name == "dP" and run is inner:
        first = structs.replace(first, inseparable=inseparable(inner.trace, findings))
    return first


def inseparable(trace: Trace, findings: Mapping[str, Finding]) -> tuple[str, ...]:
    """What may be wrong in dP's place: delta, where both were recovered and are wrong by themselves.

    P and dS show dP - delta alone. Which part of that is delta is read where dP is 0, and only if delta is one a row.
    """
    wrong = [findings[name].status == MISMATCH for name in QUOTIENTS if name in findings]
    return ("delta",) if wrong == [True, True] and trace.sources["dP"] == "recovered" else ()


def _blamed(own: Finding, inner: Finding | None) -> Finding:
    """A finding of the ordinary run, of whose wrong heads those inherit that do so in the one-hot problems."""
    if inner is None or not own.mismatched:
        return own
    left = own.own.masked_fill((inner.wrong > 0) & (inner.own == 0), 0)
    rising = own.rising_own if bool(left.any()) else RisingErrors()
    return replace(own, own=left, rising_own=rising)
