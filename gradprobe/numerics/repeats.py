"""What several runs of the same values have in common: which elements differ, by how much, and what is wrong in all."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor

from ..inputs.guard_bands import same_bits
from ..model.case import Case
from ..model.intermediates import slots
from ..model.layout_run import MISMATCH, Line, RepeatedResult
from ..model.number import Number, spans
from ..runtime.run import Trace
from .compare import allowed
from .evidence import MeasuredRun

# A few repeats show less than the largest difference that atomics can make. A difference within this multiple of theirs
# needs no further look. One beyond it is not wrong yet: it is compared with the reference.
ROOM = 4.0


class Repeats:
    """Adds up the runs of one layout. Of each intermediate it holds the least and the largest values."""

    def __init__(self, case: Case, first: MeasuredRun) -> None:
        self._case, self._first, self.count = case, first, 0
        self._least: dict[str, Tensor] = {}
        self._most: dict[str, Tensor] = {}
        self._differs: dict[str, Tensor] = {}
        self._wrong: dict[str, list[Tensor]] = {}
        self.add(first)

    def add(self, measured: MeasuredRun) -> None:
        """One more run, measured."""
        self.count += 1
        for name, value in measured.trace.values.items():
            first = self._first.trace.values.get(name)
            if first is None or value.dtype != first.dtype:
                continue
            self._least[name] = torch.minimum(self._least.get(name, value), value)
            self._most[name] = torch.maximum(self._most.get(name, value), value)
            differs = ~same_bits(first, value)
            self._differs[name] = self._differs.get(name, differs) | differs
        for name, finding in measured.comparison.findings.items():
            if finding.status == MISMATCH:
                self._wrong.setdefault(name, []).append(finding.own > 0)

    @property
    def varying(self) -> list[str]:
        """The intermediates of which two runs gave different bits."""
        return [name for name, differs in self._differs.items() if bool(differs.any())]

    def found(self, atomics: Mapping[str, Collection[Line]]) -> tuple[RepeatedResult, ...]:
        """What is not the same in all runs, or wrong in one; in dataflow order.

        Args:
            atomics: by intermediate, what adds into it.
        """
        named = [name for name in self._differs if name in self.varying or name in self._wrong]
        return tuple(self._of(name, tuple(atomics.get(name, ()))) for name in named)

    def _of(self, name: str, atomics: tuple[Line, ...]) -> RepeatedResult:
        differs, wrong = self._placed(name, self._differs[name]), self._wrong.get(name, [])
        ratio = self._ratio(name, differs)
        letter = slots(self._case.axes(name))[2]
        block = {"m": self._case.block_m, "n": self._case.block_n}.get(letter, 0)
        rows = differs.any(-1).flatten(0, 1).any(0).nonzero().flatten().tolist() if block else []
        always = torch.stack(wrong).all(0) if wrong else torch.zeros(1, 1, dtype=torch.bool)
        in_wrong = None
        if ratio is not None and bool(always.any()):
            in_wrong = Number(float(ratio[always.to(ratio.device)].max()))
        return RepeatedResult(
            name=name,
            runs=self.count,
            differing=int(differs.sum()),
            total=differs.numel(),
            heads=self._heads(name, differs.flatten(2).any(2)),
            tiles=tuple(spans(sorted({row // block for row in rows}))),
            block=block,
            spread=None if ratio is None else Number(float(ratio.max())),
            atomics=atomics,
            wrong_in=len(wrong),
            wrong_heads=self._heads(name, always),
            wrong_spread=in_wrong,
        )

    def _ratio(self, name: str, differs: Tensor) -> Tensor | None:
        """[B, H, R, C] the spread as a multiple of what is allowed; None of what is of the size of the scores."""
        comparison = self._first.comparison
        if name not in comparison.bounds:
            return None
        bound = allowed(comparison, name, self._first.trace.values[name].dtype)
        spread = self._most[name].double() - self._least[name].double()
        ratio = self._placed(name, spread) / self._placed(name, bound)
        return ratio.nan_to_num(torch.inf).masked_fill(~differs, 0.0)

    def _placed(self, name: str, tensor: Tensor) -> Tensor:
        """In four axes: batch, head, row and column, each 1 where it has none."""
        tensor = tensor if self._case.axes(name)[0] in "b1" else tensor[None]
        return tensor[(..., *[None] * (4 - tensor.dim()))]

    def _heads(self, name: str, where: Tensor) -> tuple[tuple[int | None, int], ...]:
        has_batches = self._case.axes(name)[0] == "b"
        places = where.nonzero().tolist()
        return tuple((batch if has_batches else None, head) for batch, head in places)


def floors(traces: Sequence[Trace]) -> dict[str, float]:
    """By intermediate, the largest difference between repeats; 0 where their bits agree."""
    first, *others = (trace.values for trace in traces)
    return {
        name: max(_difference(value, other[name]) for other in others)
        for name, value in first.items()
    }


def differing(trace: Trace, base: Trace, allowed: Mapping[str, float]) -> tuple[str, ...]:
    """The intermediates that differ in any bit, or, where repeats differ too, by more than those."""
    return tuple(
        name
        for name, value in base.values.items()
        if not _agrees(trace.values.get(name), value, allowed[name])
    )


def _agrees(tensor: Tensor | None, base: Tensor, floor: float) -> bool:
    if tensor is None or tensor.dtype != base.dtype:
        return False
    if bool(same_bits(tensor, base).all()):
        return True
    return floor > 0 and _difference(tensor, base) <= ROOM * floor


def _difference(tensor: Tensor, other: Tensor) -> float:
    """The largest absolute difference; infinite where an element is not finite and its partner is not the same."""
    same = (tensor == other) | (tensor.isnan() & other.isnan())
    apart = (tensor.double() - other.double()).abs().masked_fill(same, 0.0)
    return (
        float(apart.nan_to_num(nan=torch.inf, posinf=torch.inf).max()) if apart.numel() else 0.0
    )
