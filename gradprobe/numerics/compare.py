"""A trace, the reference and a budget -> Comparison: per intermediate, head and row, every element, NaN-safe.

Each tile is compared at once: nothing of size [B, H, M, N] is held but what came. A second pass, only when something is
wrong, evaluates the reference with the target's own values in place of each parent, and so tells a mismatch from an
error that is inherited.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..model.case import Case
from ..model.layout_run import INHERITED
from ..reference import Attention, Tile, evaluate, tiles
from ..reference.attention import BY_ROW, MATRICES
from ..runtime.run import Trace, expected_shapes
from .budget import Recovery, TileBudget, WholeIntermediates, rounding_shift, tile_budget
from .declared_precision import Precision, Tensors, ordinary, output_rounding, stored
from .finding import Finding, Judgement

# What other intermediates are made of.
PARENTS = tuple(name for name in BY_ROW if name != "dQ")
# Elements of one tile's matrices: 16 MiB in float64, of which some twenty are alive at once. A GPU waits for launches
# at so few: there rows of one head make four times as many, where no sums of more keys lie beside them.
TILE_ELEMENTS = 1 << 21
LONG = 1 << 14
Evaluate = Callable[[Attention, Tile, Tensors | None], dict[str, Tensor]]
"""The form of `reference.evaluate`."""


@dataclass(frozen=True)
class Comparison:
    """What a comparison found."""

    findings: Mapping[str, Finding]
    """By intermediate, in dataflow order; those that the target exposed."""
    absent: tuple[str, ...]
    """The intermediates of the case that the target did not expose."""
    precision: Precision
    undecided: int
    """Entries on the ReLU's kink, where rounding alone decides and either side is right."""
    expected: Tensors
    """The reference's values of what grows linearly with length (all but P, dP and dS)."""
    bounds: Tensors
    """The allowed errors of the same."""
    recovery: Recovery | None = None
    reading: Mapping[str, float] = field(default_factory=dict)
    """For each recovered intermediate, the most that reading it out of the gradients may add to an element's error."""
    evaluate: Evaluate = field(default=evaluate)
    """The reference, or a coarser arithmetic that the target proved to have."""
    replaced: Tensors = field(default_factory=dict)
    """The values of a user's own reference."""
    by_block: Callable[[int, int], Comparison] | None = None
    """Compares the block of a batch and a key head alone, of a large run, whose `expected` and `bounds` are made where
    they are asked for."""

    def values(self, x: Attention, tile: Tile) -> dict[str, Tensor]:
        """What was expected of a tile."""
        return with_replaced(self.evaluate(x, tile, None), self.replaced, tile)

    def judged(self, trace: Trace, name: str) -> Judgement:
        """An intermediate of linear size, whole."""
        of = trace.values[name], self.expected[name], self.bounds[name]
        return judge_whole(*of, exact=self.precision.exact)

    @property
    def matches(self) -> bool:
        return all(finding.mismatched == 0 for finding in self.findings.values())


def attention_of(case: Case, values: Tensors) -> Attention:
    """The reference's problem for the values of a run, in float64 on their device."""
    tensors: dict[str, Any] = {
        name: value.double() if value.is_floating_point() else value
        for name, value in values.items()
        if name in Attention.__dataclass_fields__
    }
    names = ("family", "scale", "causal", "window", "softcap", "align", "dropout")
    return Attention(**{name: getattr(case, name) for name in names}, **tensors)


def compare(
    case: Case,
    x: Attention,
    trace: Trace,
    precision: Precision,
    *,
    reference: Trace | None = None,
    recovery: Recovery | None = None,
    evaluate: Evaluate = evaluate,
    tick: Callable[[float], None] = lambda fraction: None,
    blame: bool = True,
    is_part: bool = False,
) -> Comparison:
    """Compares every element with the reference, and a wrong one also with what the target's own parents imply.

    Args:
        reference: values to judge by in place of the built-in reference's, where it has them.
        recovery: how intermediates of the trace were recovered, where they were.
        evaluate: the built-in reference, or that with something around it.
        tick: told the fraction done of a pass, after each tile.
        blame: whether what the parents imply is asked for at all.
        is_part: whether the case is one block of another, for all blocks of which together `promoted` is asked.
    """
    replaced = reference.values if reference is not None else {}
    begun = partial(_Pass, case, x, trace.values, precision, replaced, recovery, evaluate)
    comparison = begun(blame=False).run(tick)
    if comparison.matches or not blame:
        return comparison
    findings = comparison.findings
    if not any(findings[name].mismatched for name in PARENTS if name in findings):
        # Nothing that others are made of is wrong: nothing is inherited.
        return replace(comparison, findings={name: _as_own(of) for name, of in findings.items()})
    blamed = begun(blame=True).run(tick)
    return blamed if is_part else promoted(blamed)


def promoted(comparison: Comparison) -> Comparison:
    """Where everything wrong is explained by its parents, the first in dataflow order is the fault's own.

    That happens only when its parents have used up nearly their whole budget without leaving it.
    """
    wrong = [finding for finding in comparison.findings.values() if finding.mismatched]
    if not wrong or any(finding.status != INHERITED for finding in wrong):
        return comparison
    findings = {**comparison.findings, wrong[0].name: _as_own(wrong[0])}
    return replace(comparison, findings=findings)


def _as_own(finding: Finding) -> Finding:
    return replace(finding, own=finding.wrong, rising_own=finding.rising)


@dataclass
class _Pass:
    """One walk over the tiles."""

    case: Case
    x: Attention
    came: Tensors
    precision: Precision
    replaced: Tensors
    recovery: Recovery | None
    evaluate: Evaluate
    blame: bool
    """Whether what the target's own parents imply is compared as well."""

    def __post_init__(self) -> None:
        shapes, came = expected_shapes(self.case), self.came
        # In dataflow order.
        given = [name for name in shapes if name in came]
        self.findings = {
            name: Finding.empty(self.case, name, came[name].shape) for name in given
        }
        self.absent = tuple(name for name in shapes if name not in came)
        linear = {name: shape for name, shape in shapes.items() if name not in MATRICES}
        summed = {name: shape for name, shape in linear.items() if name not in BY_ROW}
        self.whole = WholeIntermediates(self.x, linear)
        # What is summed over rows, as the target's own P, dP, delta and dS imply it.
        self.own = WholeIntermediates(self.x, summed) if self.blame else None
        self.reading: dict[str, float] = {}
        self.undecided = 0

    def run(self, tick: Callable[[float], None]) -> Comparison:
        every = list(tiles_of(self.case, self.x))
        for done, tile in enumerate(every, 1):
            self._tile(self._of_seen_keys(tile))
            tick(done / len(every))
        whole = self.whole
        for name in whole.squares:
            self._judge_sum(name)
        precision = self.precision if whole.exact else ordinary(self.precision)
        return Comparison(
            self.findings, self.absent, precision, self.undecided, whole.values, whole.bounds, self.recovery,
            self.reading, replaced=self.replaced,
        )  # fmt: skip

    def _of_seen_keys(self, tile: Tile) -> Tile:
        """The tile without the keys that its masks hide from all of its rows, where what came is 0 there as it should.

        A recovered intermediate is read at keys of its own.
        """
        if self.recovery is not None:
            return tile
        seen = replace(tile, keys=self.x.seen_keys(tile))
        for name in self.came.keys() & {*MATRICES}:
            came = self.came[name][tile.batch, tile.heads, tile.rows]
            before, after = came[..., : seen.keys.start], came[..., seen.keys.stop :]
            if bool((before != 0).any() | (after != 0).any()):
                return tile
        return seen

    def _tile(self, tile: Tile) -> None:
        values = self.evaluate(self.x, tile, None)
        shift = rounding_shift(self.x, tile, values, self.precision)
        values = with_replaced(values, self.replaced, tile)
        budget = tile_budget(self.x, tile, values, self.precision, shift)
        if self.recovery is not None:
            budget = self._read(self.recovery, tile, values, budget)
        self.undecided += int(budget.undecided.sum())
        self.whole.add(tile, values, budget)
        own = None
        if self.own is not None:
            own = _Parents(self, tile, values, shift)
            self.own.add(tile, own.implied, own.budget)
        for name in self.findings.keys() & {*BY_ROW}:
            actual = part_of(self.came[name], name, tile)
            judged = judge(actual, values, budget, name)
            inherited = None if own is None else own.explain(name, actual, judged)
            self.findings[name].add(tile, judged, inherited)

    def _read(
        self, recovery: Recovery, tile: Tile, values: Tensors, plain: TileBudget
    ) -> TileBudget:
        """The budget of a tile of recovered intermediates; notes how much of it comes from reading them out."""
        budget = recovery.widened(self.x, tile, values, plain, self.precision)
        for name in recovery.names & self.findings.keys():
            added = (budget.rows[name] - plain.rows[name]).nan_to_num(0.0, 0.0, 0.0)
            self.reading[name] = max(self.reading.get(name, 0.0), float(added.max()))
        return budget

    def _judge_sum(self, name: str) -> None:
        """Compares what is summed over rows, which is complete only after the last tile."""
        whole, own = self.whole, self.own
        expected = whole.values[name] = self.replaced.get(name, whole.values[name]).double()
        bound = whole.bounds[name] = whole.bound(name, expected, self.precision)
        if name not in self.findings:
            return
        actual, inherited = self.came[name], None
        judged = judge_whole(actual, expected, bound, exact=whole.exact)
        if own is not None:
            rounding = output_rounding(expected, bound, actual.dtype)
            bound = own.bound(name, own.values[name], self.precision) + rounding
            inherited = _within(judged.actual, own.values[name], bound, poisoned=True)
        self.findings[name].add_whole(judged, inherited)


class _Parents:
    """What the target's own parents imply for a tile, and the errors allowed to that."""

    def __init__(
        self, of: _Pass, tile: Tile, values: Tensors, shift: Tensors | None
    ) -> None:  # fmt: skip
        self.of, self.tile, self.values, self.shift = of, tile, values, shift
        given = of.came.keys() & {*PARENTS}
        self.given = {name: part_of(of.came[name], name, tile).double() for name in given}
        self.implied = of.evaluate(of.x, tile, self.given)
        self.budget = self._allowed(self.implied | self.given)

    def _allowed(self, values: Tensors) -> TileBudget:
        of = self.of
        return allowed_on(of.x, self.tile, values, of.precision, of.recovery, self.shift)

    def explain(self, name: str, actual: Tensor, judged: Judgement) -> Tensor:
        """Which elements are as the parents imply, by either formula of delta."""
        own = judge(actual, self.implied, self.budget, name, poisoned=True)
        inherited = own.right
        if name == "delta":
            other = _other_delta(self.of.x, self.tile, self.implied | self.given)
            inherited = inherited | _within(own.actual, other, own.bound, poisoned=True)
        if name == "dS" and not bool((inherited | judged.right).all()):
            inherited = inherited | self._otherwise(actual)
        return inherited

    def _otherwise(self, actual: Tensor) -> Tensor:
        """Where dS is what P gives with a delta that was right, and with a dP that no mask covers.

        A kernel may be given delta, or O, and so not have it of a wrong P; and where P is not 0 in rows and keys that
        see nothing, it meets dO V^T.
        """
        given, valid = dict(self.given), self.values["valid"]
        given["dP"] = self.implied["dPE"].where(~valid, given.get("dP", self.implied["dP"]))
        given.setdefault("delta", self.values["delta"])
        other = self.of.evaluate(self.of.x, self.tile, given)
        budget = self._allowed(other | given | {"dS": other["dS"]})
        return judge(actual, other, budget, "dS", poisoned=True).right


def part_of(whole: Tensor, name: str, tile: Tile) -> Tensor:
    """A tile's part of what belongs to rows."""
    rows = whole[tile.batch, tile.heads, tile.rows]
    return rows[..., tile.keys] if name in MATRICES else rows


def with_replaced(values: dict[str, Tensor], replaced: Tensors, tile: Tile) -> dict[str, Tensor]:
    """The reference's values of a tile, where another reference has values those."""
    others = {name: replaced[name] for name in BY_ROW if name in replaced}
    return values | {name: part_of(of, name, tile).double() for name, of in others.items()}


def allowed_on(
    x: Attention,
    tile: Tile,
    values: Tensors,
    precision: Precision,
    recovery: Recovery | None = None,
    shift: Tensors | None = None,
) -> TileBudget:
    """The errors allowed on a tile, with what recovering intermediates adds to them.

    Args:
        shift: the `rounding_shift` of other values than these.
    """
    shift = shift or rounding_shift(x, tile, values, precision)
    budget = tile_budget(x, tile, values, precision, shift)
    return budget if recovery is None else recovery.widened(x, tile, values, budget, precision)


def judge(
    actual: Tensor, values: Tensors, budget: TileBudget, name: str, *, poisoned: bool = False
) -> Judgement:  # fmt: skip
    """One intermediate on one tile; `poisoned` as in `_within`."""
    about = {"exact": budget.exact, "poisoned": poisoned}
    of, valid = judge_whole(actual, values[name], budget.rows[name], **about), values["valid"]
    if name == "dP":
        # The other value that it may have on the ReLU's kink; and in the softmax family where no key is seen, since P
        # masks dP once more there. Not so in the lazy family, whose dTau sums dP as it is.
        other, free = values["dPE"].masked_fill(values["dP"] != 0, 0.0), ~valid
        bound = budget.unmasked_dp + output_rounding(other, budget.unmasked_dp, actual.dtype)
        free = budget.undecided if "Z" in values else free
        return of._replace(right=of.right | (free & _within(of.actual, other, bound, poisoned)))
    if name == "LSE":  # several conventions of a row that sees no key; nothing reads it
        return of._replace(right=of.right | (~valid.any(-1) & ~actual.isnan()))
    return of


def _other_delta(x: Attention, tile: Tile, values: Tensors) -> Tensor:
    """delta by the formula that the reference does not use: the two differ once P, dP or O is wrong."""
    if x.tau is None:
        return (values["P"] * values["dP"]).sum(-1)
    share = x.tau[tile.heads, None] / (x.positions(tile)[0][:, 0] + 1)
    of_o = (x.do[tile.batch, tile.heads, tile.rows] * values["O"]).sum(-1)
    return of_o - share * values["dP"].sum(-1)


def judge_whole(
    actual: Tensor,
    expected: Tensor,
    bound: Tensor,
    *,
    exact: bool = False,
    poisoned: bool = False,
) -> Judgement:
    """What came beside what is expected, with what it may err by before it is stored; `poisoned` as in `_within`.

    Args:
        exact: whether nothing of it was rounded to 16 bits but itself.
    """
    dtype, actual = actual.dtype, actual.double()
    if exact:
        bound = stored(actual, expected, bound, dtype)
    else:  # where 0 is expected because nothing flows there, nothing is allowed either
        flows = (expected != 0) | (bound > 0)
        bound = bound + output_rounding(expected, bound, dtype) * flows
    # An infinity of the right sign is right where the exact value may lie outside the range of the dtype.
    is_beyond = actual.sign() * expected + bound >= torch.finfo(dtype).max
    overflows = actual.isinf() & bound.isfinite() & is_beyond
    right = _within(actual, expected, bound, poisoned) | overflows
    return Judgement(actual, expected, bound, right)


def _within(actual: Tensor, expected: Tensor, bound: Tensor, poisoned: bool) -> Tensor:
    """Whether each element is right. A NaN or infinity never is, save where it is expected; or is `poisoned`: anything
    not finite is explained by a parent that was not.
    """
    error = (actual - expected).abs()
    right = (actual == expected) | (error.isfinite() & (error <= bound))
    return right | (~actual.isfinite() & ~expected.isfinite()) if poisoned else right


def tiles_of(case: Case, x: Attention) -> Iterator[Tile]:
    """The tiles that a comparison works through."""
    heads, rows = tile_size(case)
    return tiles(x, heads=heads, rows=rows)


def tile_size(case: Case) -> tuple[int, int]:
    """(heads, rows) of each of them."""
    keys = max(case.seqlen_k, 1)
    most = 4 * TILE_ELEMENTS if case.device == "cuda" and keys <= LONG else TILE_ELEMENTS
    rows = max(1, min(case.seqlen_q, most // keys))
    heads = max(1, min(case.heads, TILE_ELEMENTS // (rows * keys)))
    return heads, rows
