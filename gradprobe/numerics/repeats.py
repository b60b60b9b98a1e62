"""Several runs of the same values, or two targets: which elements differ, by how much, and what is wrong in all."""

from collections.abc import Collection, Iterable, Iterator, Mapping

import torch
from msgspec.structs import replace
from torch import Tensor

from ..inputs.guard_bands import same_bits
from ..model.case import Case, unlike
from ..model.intermediates import slots
from ..model.layout_run import MISMATCH, Difference, Line, RepeatedResult
from ..model.number import Number, spans
from ..reference.attention import BY_ROW
from ..runtime.run import Trace
from .compare import allowed_on, judge, judge_whole, tiles_of
from .evidence import LayoutRun, MeasuredRun
from .finding import Finding, Judgement
from .locate import locate_at


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
        named = {*self.varying, *self._wrong}
        return tuple(
            self._of(name, tuple(atomics.get(name, ())))
            for name in self._differs
            if name in named
        )

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
            name=name, runs=self.count, differing=int(differs.sum()), total=differs.numel(),
            heads=self._heads(name, differs.flatten(2).any(2)),
            tiles=tuple(spans(sorted({row // block for row in rows}))), block=block,
            spread=None if ratio is None else Number(float(ratio.max())), atomics=atomics,
            wrong_in=len(wrong), wrong_heads=self._heads(name, always), wrong_spread=in_wrong,
        )  # fmt: skip

    def _ratio(self, name: str, differs: Tensor) -> Tensor | None:
        """[B, H, R, C] the spread as a multiple of what is allowed; None of what is of the size of the scores."""
        comparison = self._first.comparison
        if name not in comparison.bounds:
            return None
        bound = comparison.judged(self._first.trace, name).bound
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


def differing(trace: Trace, base: Trace) -> tuple[str, ...]:
    """The intermediates that differ in any bit."""
    found = []
    for name, value in base.values.items():
        came = trace.values.get(name)
        if came is None or came.dtype != value.dtype or not bool(same_bits(came, value).all()):
            found.append(name)
    return tuple(found)


class SideBySide:
    """Keeps what a target exports, and compares it with what another one did, layout by layout as it comes.

    Args:
        kept: the file that it is written into, for another check; "" for none.
        other: such a file of another target; "" for none.
        case: that one's: of another problem nothing is compared.
    """

    def __init__(self, kept: str, other: str = "", case: Case | None = None) -> None:
        self._kept, self._case = kept, case
        self._given: dict[str, dict[str, Tensor]] = {}
        self._other = torch.load(other, weights_only=True) if other else {}
        self._seen = set[str]()
        self.differences: list[Difference] = []
        """Of all layouts that both took. An element of one differs *beyond* where it lies further from the other's than
        that may lie from the reference."""

    def take(self, case: Case, runs: Iterable[LayoutRun]) -> None:
        """Looks at the runs that are new."""
        is_alike = self._case is not None and not unlike(case, self._case)
        for run in runs:
            if not run.is_plain or run.measured is None or run.layout in self._seen:
                continue
            self._seen.add(run.layout)
            trace = run.measured.trace
            own = [name for name in trace.values if trace.sources[name] == "exported"]
            if self._kept:
                self._given[run.layout] = {name: trace.values[name].cpu() for name in own}
                torch.save(self._given, self._kept)
            others = self._other.get(run.layout, {}) if is_alike else {}
            device = run.measured.x.q.device
            common = {name: others[name].to(device) for name in own if name in others}
            self.differences += _of_layout(case, run.layout, run.measured, common)


def _of_layout(
    case: Case, layout: str, measured: MeasuredRun, others: Mapping[str, Tensor]
) -> Iterator[Difference]:
    """Judges each element by the other target's, with the errors that the reference's values allow."""
    comparison, values = measured.comparison, measured.trace.values
    findings = {name: Finding.empty(case, name, values[name].shape) for name in others}
    by_row = [name for name in others if name in BY_ROW]
    for tile in tiles_of(case, measured.x) if by_row else ():
        place = (tile.batch, tile.heads, tile.rows)
        expected = comparison.evaluate(measured.x, tile, None)
        budget = allowed_on(
            measured.x, tile, expected, comparison.precision, comparison.recovery
        )
        for name in by_row:
            beside = {**expected, name: others[name][place].double()}
            judged = judge(values[name][place], beside, budget, name)
            findings[name].add(tile, _alike(judged), None)
    for name, finding in findings.items():
        if name not in BY_ROW:
            judged = judge_whole(values[name], others[name].double(), comparison.bounds[name])
            finding.add_whole(_alike(judged), None)
        differing = int((~_same(values[name], others[name])).sum())
        yield _shown_difference(case, layout, measured, finding, differing)


def _alike(judged: Judgement) -> Judgement:
    """No difference where neither is a number."""
    return judged._replace(right=judged.right | _same(judged.actual, judged.expected))


def _same(values: Tensor, other: Tensor) -> Tensor:
    return (values == other) | (values.isnan() & other.isnan())


def _shown_difference(
    case: Case, layout: str, measured: MeasuredRun, finding: Finding, differing: int
) -> Difference:
    """With what the reference gives at the first difference, and what the other target gave there."""
    heads = tuple(finding.wrong.any(0).nonzero().flatten().tolist())
    first = finding.first_wrong
    found = Difference(
        layout=layout, name=finding.name, total=finding.total, differing=differing, beyond=finding.mismatched,
        max_budget_ratio=Number(finding.max_ratio), heads=heads, first=first,
    )  # fmt: skip
    if first is None:
        return found
    at = (first.batch or 0, first.head or 0, first.row or 0, first.col or 0)
    located = locate_at(measured, case, finding.name, at, float(first.budget or 0.0))
    return replace(found, first=replace(located, window=None), other=first.expected)
