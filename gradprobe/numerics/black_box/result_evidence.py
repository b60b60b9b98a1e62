"""ResultEvidence: what each exported result of the one-hot problems says, and how it stands beside the first run's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from msgspec import structs
from torch import Tensor

from ...model.case import Case
from ...model.intermediates import MATRIX_OF, names
from ...model.layout_run import MISMATCH, Element
from ...reference import Attention, evaluate
from ...runtime.run import Trace
from ..budget import RECOVERABLE, Recovery
from ..compare import Comparison, promoted, tiles_of
from ..evidence import MeasuredRun
from ..locate import locate
from ..tally import Finding, RisingErrors
from .recover import RecoveredValues

QUOTIENTS = ("dP", "delta")
"""What is read off P and dS."""
RIGHT, COARSE, WRONG = range(3)
"""Within the contract's budget; within that of the coarser arithmetic that such a kernel may have; beyond."""


class Measure(Protocol):
    """Compares a trace with the reference on the values that it came of."""

    def __call__(
        self,
        values: Mapping[str, Tensor],
        trace: Trace,
        recovery: Recovery | None = None,
        *,
        coarse: bool = False,
    ) -> MeasuredRun:
        """What it comes to; by the arithmetic that is coarser than the contract, if `coarse`."""
        ...


@dataclass(frozen=True)
class ResultEvidence:
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
    def is_reached(self) -> bool:
        """Whether what is wrong in the ordinary run shows here too."""
        return self.beside <= self.whole

    @property
    def note(self) -> str:
        """The disagreement of one that is coarse, in words."""
        seen = (
            f"{self.name}, seen through {self.through},"
            if self.name != self.through
            else f"{self.name} of them"
        )
        return (
            f"in one-hot problems {seen} errs by {self.ratio:.3g}x what is allowed, and with the case's own values "
            f"{self.through} is right: rather a coarser arithmetic than a wrong kernel"
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
        findings, trace = measured.comparison.findings, recovered.trace
        exported = [
            self._evidence(recovered, name, name, trace.values[name], finding)
            for name, finding in findings.items()
            if trace.sources[name] != "recovered"
        ]
        whole = {one.name: one.grade for one in exported}
        known = {
            name: finding
            for name, finding in findings.items()
            if trace.sources[name] == "recovered"
        }
        return exported + self.shown(recovered, whole, known)

    def shown(
        self,
        recovered: RecoveredValues,
        whole: Mapping[str, int] = {},
        findings: Mapping[str, Finding] = {},
    ) -> list[ResultEvidence]:
        """What each gradient shows of its intermediate."""
        found = []
        for name, value in recovered.by.items():
            compared = findings if value is recovered.trace.values.get(MATRIX_OF[name]) else {}
            found.append(self.of(recovered, name, value, whole.get(name, RIGHT), compared))
        return found

    def of(
        self,
        recovered: RecoveredValues,
        through: str,
        value: Tensor,
        whole: int = RIGHT,
        known: Mapping[str, Finding] = {},
    ) -> ResultEvidence:
        """What a gradient shows of its intermediate.

        Args:
            value: how it shows it.
            whole: the grade of the gradient itself.
            known: where the value was compared already.
        """
        name = MATRIX_OF[through]
        finding = known.get(name) or self._alone(recovered, name, value).findings[name]
        evidence = self._evidence(recovered, name, through, value, finding)
        return replace(evidence, whole=max(evidence.grade, whole))

    def _evidence(
        self, recovered: RecoveredValues, name: str, through: str, value: Tensor, finding: Finding
    ) -> ResultEvidence:
        grade = RIGHT
        if finding.mismatched:
            grade = COARSE if self._alone(recovered, name, value, coarse=True).matches else WRONG
        return ResultEvidence(
            name, through, grade, self.beside(through), grade, finding.max_ratio
        )

    def beside(self, name: str) -> int:
        """The grade of a result of the ordinary run."""
        if name not in self._beside:
            finding = self._own.comparison.findings.get(name)
            grade = RIGHT
            if finding is not None and finding.mismatched:
                alone = self._measure(
                    self._values, _only(name, self._own.trace.values[name]), coarse=True
                )
                grade = COARSE if alone.comparison.matches else WRONG
            self._beside[name] = grade
        return self._beside[name]

    def _alone(
        self, recovered: RecoveredValues, name: str, value: Tensor, *, coarse: bool = False
    ) -> Comparison:
        # What a gradient shows was read, even where the target exposes it besides.
        read = (
            value is not recovered.trace.values.get(name)
            or recovered.trace.sources[name] == "recovered"
        )
        recovery = replace(recovered.recovery, names=frozenset(RECOVERABLE if read else ()))
        return self._measure(
            recovered.values, _only(name, value), recovery, coarse=coarse
        ).comparison


def _only(name: str, value: Tensor) -> Trace:
    return Trace({name: value}, {name: "exported"})


def beside(own: MeasuredRun, inner: MeasuredRun) -> MeasuredRun:
    """What a report shows of a run that was looked into.

    What the target exposed stays as it came, number for number. Where it is wrong, and is so in the one-hot problems
    too but inherits it there from parents that the ordinary run does not show, it is called inherited.
    """
    of_inner = inner.comparison.findings
    known = {
        name: _blamed(one, of_inner.get(name)) for name, one in own.comparison.findings.items()
    }
    recovered = {name: one for name, one in of_inner.items() if name not in known}
    order = [name for name in names() if name in known or name in recovered]
    findings = {name: known.get(name) or recovered[name] for name in order}
    comparison = replace(
        own.comparison,
        findings=findings,
        absent=tuple(name for name in own.comparison.absent if name not in findings),
        reading={
            name: most for name, most in inner.comparison.reading.items() if name in recovered
        },
    )
    sources = {name: (own if name in known else inner).trace.sources[name] for name in order}
    shown = replace(
        own, trace=replace(own.trace, sources=sources), comparison=promoted(comparison)
    )
    return replace(shown, first=_first(own, inner, findings))


def _first(
    own: MeasuredRun, inner: MeasuredRun, findings: Mapping[str, Finding]
) -> Element | None:
    """The first mismatch, in the run whose it is."""
    name = next((name for name, finding in findings.items() if finding.status == MISMATCH), None)
    if name is None:
        return None
    if name in own.trace.values:
        return locate(own.x, own.trace, replace(own.comparison, findings={name: findings[name]}))
    only = {name: inner.comparison.findings[name]}
    first = locate(inner.x, inner.trace, replace(inner.comparison, findings=only))
    return (
        structs.replace(first, inseparable=inseparable(inner.trace, findings))
        if first and name == "dP"
        else first
    )


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
    inherits = (inner.wrong > 0) & (inner.own == 0)
    left = own.own.masked_fill(inherits, 0)
    return replace(
        own, own=left, rising_own=own.rising_own if bool(left.any()) else RisingErrors()
    )


# Sets of axes whose strides kernels are known to mix up: one, those of a program's offset, or all.
_AXES = ("b", "h", "m", "d", "bh", "bhm", "md", "bhmd")
# What one reading may leave of a gradient, as a share of its squares: a 16-bit rounding leaves 2^-16 at most.
_UNEXPLAINED = 2.0**-10


def reread_do(case: Case, x: Attention, dv: Tensor, tensors: Mapping[str, Tensor]) -> str | None:
    """How dO is misread, "with q's head stride", where that explains a wrong dV; None where none does.

    Args:
        x: the problem, with the values meant.
        dv: what the target gave.
        tensors: the inputs as they lay in memory, guard bands around them.
    """
    readings = dict(_readings(tensors)) | dict(_of_other_heads(case, x.do))
    predicted = {reading: dv.double() * 0 for reading in readings}
    for tile in tiles_of(case, x):
        pe, kv_heads = evaluate(x, tile)["PE"], x.kv_heads(tile)
        for reading, do in readings.items():
            share = pe.mT @ do[tile.batch, tile.heads, tile.rows].double()
            predicted[reading][tile.batch].index_add_(0, kv_heads, share)
    return next(
        (reading for reading, expected in predicted.items() if _explains(expected, dv)), None
    )


def _explains(expected: Tensor, gradient: Tensor) -> bool:
    error = ((gradient.double() - expected) ** 2).sum() / (expected**2).sum().clamp(min=1e-300)
    return bool(error <= _UNEXPLAINED)


def _readings(tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Every other reading of dO, each once."""
    own, named = tensors["do"], {"b": "batch", "h": "head", "m": "row", "d": "dim"}
    tried = {own.stride()}
    for name, other in tensors.items():
        if name == "do" or other.dim() != 4 or not other.is_floating_point():
            continue
        for axes in _AXES:
            pairs = zip("bhmd", own.stride(), other.stride(), strict=True)
            strides = tuple(theirs if axis in axes else mine for axis, mine, theirs in pairs)
            reach = own.storage_offset() + sum(
                (n - 1) * stride for n, stride in zip(own.shape, strides, strict=True)
            )
            if (
                strides not in tried
                and reach < own.untyped_storage().nbytes() // own.element_size()
            ):
                tried.add(strides)
                words = "every" if len(axes) == 4 else " and ".join(named[axis] for axis in axes)
                yield f"with {name}'s {words} stride", own.as_strided(own.shape, strides)


def _of_other_heads(case: Case, do: Tensor) -> Iterator[tuple[str, Tensor]]:
    """dO of the head or batch that a wrong index leads to."""
    heads, kv_heads = torch.arange(case.heads, device=do.device), case.kv_heads
    maps = {"of head 0 in every head": heads * 0}
    if 1 < kv_heads < case.heads:
        maps["of head h // group, its key head's number"] = heads // (case.heads // kv_heads)
        maps["of head h % kv_heads"] = heads % kv_heads
    for how, index in maps.items():
        if case.heads > 1:
            yield how, do[:, index]
    if case.batch > 1:
        yield "of batch 0 in every batch", do[:1].expand_as(do)
