"""Two traces and a budget -> Comparison: per intermediate, head and row, every element, NaN-safe.

The reference is evaluated tile by tile, and each tile is compared at once: nothing of size [B, H, M, N] is held but
what came. A second pass, only when something is wrong, evaluates the reference with the target's own values in place of
each parent, and so tells a mismatch from an error that is inherited.
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
from .block import Block
from .budget import Recovery, TileBudget, WholeIntermediates, rounding_shift, tile_budget
from .declared_precision import Precision, ordinary, output_rounding, stored
from .tally import Finding, Judgement, Tally

OTHER_DELTA = "delta, otherwise"
# What other intermediates are made of.
PARENTS = tuple(name for name in BY_ROW if name != "dQ")
# Elements of one tile's matrices: 16 MiB in float64, of which some twenty are alive at once. A GPU waits for launches
# at so few: there rows of one head make four times as many, where no sums of more keys lie beside them.
TILE_ELEMENTS = 1 << 21
LONG = 1 << 14


Evaluate = Callable[[Attention, Tile, Mapping[str, Tensor] | None], dict[str, Tensor]]
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
    expected: Mapping[str, Tensor]
    """The reference's values of what grows linearly with length (all but P, dP and dS)."""
    bounds: Mapping[str, Tensor]
    """The allowed errors of the same."""
    recovery: Recovery | None = None
    reading: Mapping[str, float] = field(default_factory=dict)
    """For each recovered intermediate, the most that reading it out of the gradients may add to an element's error."""
    evaluate: Evaluate = field(default=evaluate)
    """What it was compared with: the reference, or a coarser arithmetic that the target proved to have."""
    replaced: Mapping[str, Tensor] = field(default_factory=dict)
    """The values of a user's own reference, by which it was judged in place of those."""
    by_block: Callable[[Block], Comparison] | None = None
    """Compares a block alone, of a large run; `expected` and `bounds` of all are computed where they are asked for."""

    def values(self, x: Attention, tile: Tile) -> dict[str, Tensor]:
        """What was expected of a tile."""
        return with_replaced(self.evaluate(x, tile, None), self.replaced, tile)

    def judged(self, trace: Trace, name: str) -> Judgement:
        """An intermediate of the trace that was compared, whole, of those summed over rows."""
        return judge_whole(
            trace.values[name], self.expected[name], self.bounds[name], exact=self.precision.exact
        )

    @property
    def matches(self) -> bool:
        return all(finding.mismatched == 0 for finding in self.findings.values())


def attention_of(case: Case, values: Mapping[str, Tensor]) -> Attention:
    """The reference's problem for the values of a run, in float64 on their device."""
    wide = {
        name: value.double() if value.is_floating_point() else value
        for name, value in values.items()
    }
    optional = (
        "bias",
        "tau",
        "seqlens",
        "alibi",
        "mask",
        "sinks",
        "keep",
        "cu_seqlens_q",
        "cu_seqlens_k",
    )
    options: dict[str, Any] = {name: wide[name] for name in optional if name in wide}
    options |= {name: wide[name] for name in ("q", "k", "v", "do")}
    names = ("family", "scale", "causal", "window", "softcap", "align", "dropout")
    return Attention(**{name: getattr(case, name) for name in names}, **options)


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
    begun = partial(_Pass, case, x, trace, precision, reference, recovery, evaluate)
    comparison = begun(blame=False).run(tick)
    if comparison.matches or not blame:
        return comparison
    if not any(
        finding.mismatched for name, finding in comparison.findings.items() if name in PARENTS
    ):
        # Where nothing that others are made of is wrong, nothing is inherited.
        own = {
            name: replace(one, own=one.wrong, rising_own=one.rising)
            for name, one in comparison.findings.items()
        }
        return replace(comparison, findings=own)
    blamed = begun(blame=True).run(tick)
    return blamed if is_part else promoted(blamed)


def promoted(comparison: Comparison) -> Comparison:
    """Where everything wrong is explained by its parents, the first in dataflow order is the fault's own.

    That happens only when its parents have used up nearly their whole budget without leaving it.
    """
    wrong = [finding for finding in comparison.findings.values() if finding.mismatched]
    if not wrong or any(finding.status != INHERITED for finding in wrong):
        return comparison
    first = replace(wrong[0], own=wrong[0].wrong, rising_own=wrong[0].rising)
    return replace(comparison, findings={**comparison.findings, first.name: first})


@dataclass
class _Pass:
    """One walk over the tiles."""

    case: Case
    x: Attention
    trace: Trace
    precision: Precision
    reference: Trace | None
    recovery: Recovery | None
    evaluate: Evaluate
    blame: bool = False

    def __post_init__(self) -> None:
        shapes = expected_shapes(self.case)
        self.replaced: Mapping[str, Tensor] = (
            self.reference.values if self.reference is not None else {}
        )
        self.tallies = {
            name: Tally(self.case, name, value.shape) for name, value in self.trace.values.items()
        }
        self.whole = WholeIntermediates(
            self.x, {name: shape for name, shape in shapes.items() if name not in MATRICES}
        )
        summed = {name: shape for name, shape in shapes.items() if name not in BY_ROW}
        # What is summed over rows, as the target's own P, dP, delta and dS imply it.
        self.own = WholeIntermediates(self.x, summed) if self.blame else None
        self.reading: dict[str, float] = {}
        self.undecided = 0

    def run(self, tick: Callable[[float], None]) -> Comparison:
        every = list(tiles_of(self.case, self.x))
        for done, tile in enumerate(every, 1):
            self._tile(self._of_seen_keys(tile))
            tick(done / len(every))
        self._summed()
        shapes = expected_shapes(self.case)
        return Comparison(
            {name: self.tallies[name].finding() for name in shapes if name in self.tallies},
            tuple(name for name in shapes if name not in self.tallies),
            self.precision if self.whole.exact else ordinary(self.precision),
            self.undecided,
            self.whole.values,
            self.whole.bounds,
            self.recovery,
            reading=self.reading,
            replaced=self.replaced,
        )

    def _of_seen_keys(self, tile: Tile) -> Tile:
        """The tile without the keys that its masks hide from all of its rows, where what came is 0 there as it should.

        A recovered intermediate is read at keys of its own.
        """
        seen = replace(tile, keys=self.x.seen_keys(tile))
        if self.recovery is not None:
            return tile
        for name in self.trace.values.keys() & {*MATRICES}:
            came = self.trace.values[name][tile.batch, tile.heads, tile.rows]
            if bool(
                (came[..., : seen.keys.start] != 0).any()
                | (came[..., seen.keys.stop :] != 0).any()
            ):
                return tile
        return seen

    def _actual(self, name: str, tile: Tile) -> Tensor:
        rows = self.trace.values[name][tile.batch, tile.heads, tile.rows]
        return rows[..., tile.keys] if name in MATRICES else rows

    def _tile(self, tile: Tile) -> None:
        values = self.evaluate(self.x, tile, None)
        shift = rounding_shift(self.x, tile, values, self.precision)
        values = with_replaced(values, self.replaced, tile)
        plain = tile_budget(self.x, tile, values, self.precision, shift)
        budget = plain if self.recovery is None else self._read(tile, values, plain)
        self.undecided += int(budget.undecided.sum())
        self.whole.add(tile, values, budget)
        own, own_budget = self._own_tile(tile, shift)
        for name in BY_ROW:
            if name in self.tallies:
                actual = self._actual(name, tile)
                judged = judge(actual, values, budget, name)
                inherited = (
                    judge(actual, own, own_budget, name, poisoned=True).right
                    if own_budget
                    else None
                )
                if (
                    inherited is not None
                    and name == "dS"
                    and not bool((inherited | judged.right).all())
                ):
                    inherited = inherited | self._inherits_otherwise(actual, tile, shift, values)
                self.tallies[name].add(
                    tile, judged, inherited, values["valid"] if name in MATRICES else None
                )

    def _read(self, tile: Tile, values: Mapping[str, Tensor], plain: TileBudget) -> TileBudget:
        """The budget of a tile of recovered intermediates; notes how much of it comes from reading them out."""
        assert self.recovery is not None
        budget = self.recovery.widened(self.x, tile, values, plain, self.precision)
        for name in self.recovery.names & self.tallies.keys():
            added = budget.rows[name] - plain.rows[name]
            most = (
                float(added.masked_fill(~added.isfinite(), 0.0).max()) if added.numel() else 0.0
            )
            self.reading[name] = max(self.reading.get(name, 0.0), most)
        return budget

    def _own_tile(
        self, tile: Tile, shift: Mapping[str, Tensor] | None
    ) -> tuple[dict[str, Tensor], TileBudget | None]:
        """What the target's own parents imply for each intermediate, and the errors allowed to that."""
        if self.own is None:
            return {}, None
        given = self._parents(tile)
        implied = self.evaluate(self.x, tile, given)
        budget = allowed_on(self.x, tile, implied | given, self.precision, self.recovery, shift)
        self.own.add(tile, implied, budget)
        return {**implied, OTHER_DELTA: _other_delta(self.x, tile, implied | given)}, budget

    def _parents(self, tile: Tile) -> dict[str, Tensor]:
        """What came of what others are made of."""
        return {
            name: self._actual(name, tile).double()
            for name in PARENTS
            if name in self.trace.values
        }

    def _inherits_otherwise(
        self,
        actual: Tensor,
        tile: Tile,
        shift: Mapping[str, Tensor] | None,
        values: Mapping[str, Tensor],
    ) -> Tensor:
        """Where dS is what P gives with a delta that was right, and with a dP that no mask covers.

        A kernel may be given delta, or O, and so not have it of a wrong P; and where P is not 0 in rows and keys that
        see nothing, it meets dO V^T.
        """
        given = self._parents(tile)
        implied = self.evaluate(self.x, tile, given)
        given["dP"] = implied["dPE"].where(~values["valid"], given.get("dP", implied["dP"]))
        given.setdefault("delta", values["delta"])
        other = self.evaluate(self.x, tile, given)
        budget = allowed_on(
            self.x,
            tile,
            other | given | {"dS": other["dS"]},
            self.precision,
            self.recovery,
            shift,
        )
        return judge(actual, other, budget, "dS", poisoned=True).right

    def _summed(self) -> None:
        """Compares what is summed over rows, which is complete only after the last tile."""
        whole, own = self.whole, self.own
        for name in whole.squares:
            whole.values[name] = self.replaced.get(name, whole.values[name]).double()
            whole.bounds[name] = whole.bound(name, whole.values[name], self.precision)
            if name in self.tallies:
                actual = self.trace.values[name]
                judged = judge_whole(
                    actual, whole.values[name], whole.bounds[name], exact=whole.exact
                )
                inherited = None
                if own is not None:
                    bound = own.bound(name, own.values[name], self.precision)
                    bound = bound + output_rounding(
                        whole.values[name], whole.bounds[name], actual.dtype
                    )
                    inherited = _within(judged.actual, own.values[name], bound, poisoned=True)
                self.tallies[name].add_whole(judged, inherited)


def allowed(comparison: Comparison, name: str, dtype: torch.dtype) -> Tensor:
    """The whole allowance of an intermediate of linear size, the rounding of its own dtype included."""
    bound = comparison.bounds[name]
    return bound + output_rounding(comparison.expected[name], bound, dtype)


def with_replaced(
    values: dict[str, Tensor], replaced: Mapping[str, Tensor], tile: Tile
) -> dict[str, Tensor]:
    """The reference's values of a tile, where another reference has values those."""
    place, of_matrix = (
        (tile.batch, tile.heads, tile.rows),
        (tile.batch, tile.heads, tile.rows, tile.keys),
    )
    return values | {
        name: replaced[name][of_matrix if name in MATRICES else place].double()
        for name in BY_ROW
        if name in replaced
    }


def allowed_on(
    x: Attention,
    tile: Tile,
    values: Mapping[str, Tensor],
    precision: Precision,
    recovery: Recovery | None = None,
    shift: Mapping[str, Tensor] | None = None,
) -> TileBudget:
    """The errors allowed on a tile, with what recovering intermediates adds to them.

    Args:
        shift: the `rounding_shift` of other values than these.
    """
    budget = tile_budget(
        x, tile, values, precision, shift or rounding_shift(x, tile, values, precision)
    )
    return budget if recovery is None else recovery.widened(x, tile, values, budget, precision)


def judge(
    actual: Tensor,
    values: Mapping[str, Tensor],
    budget: TileBudget,
    name: str,
    *,
    poisoned: bool = False,
) -> Judgement:
    """One intermediate on one tile.

    Args:
        poisoned: from `_within`.
    """
    dtype, actual, expected, bound = (
        actual.dtype,
        actual.double(),
        values[name],
        budget.rows[name],
    )
    # Where 0 is expected because nothing flows there, nothing is allowed either.
    if budget.exact:
        bound = stored(actual, expected, bound, dtype)
    else:
        bound = bound + output_rounding(expected, bound, dtype) * ((expected != 0) | (bound > 0))
    right = _within(actual, expected, bound, poisoned=poisoned) | may_overflow(
        actual, expected, bound, dtype
    )
    if name == "dP":
        other, allowed, free = _other_side(values, budget, dtype)
        right |= free & _within(actual, other, allowed, poisoned=poisoned)
    if name == "delta" and OTHER_DELTA in values:
        right |= _within(actual, values[OTHER_DELTA], bound, poisoned=poisoned)
    if (
        name == "LSE"
    ):  # of a row that sees no key there are several conventions, and nothing reads it
        right |= ~values["valid"].any(-1) & ~actual.isnan()
    return Judgement(actual, expected, bound, right)


def _other_side(
    values: Mapping[str, Tensor], budget: TileBudget, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """The other value that dP may have, what it may err by, and where dP may be 0 and dO V^T alike.

    On the ReLU's kink; and in the softmax family where no key is seen, since P masks dP once more there. Not so in the
    lazy family, whose dTau sums dP as it is.
    """
    other, bound = values["dPE"].masked_fill(values["dP"] != 0, 0.0), budget.unmasked_dp
    free = budget.undecided if "Z" in values else ~values["valid"]
    return other, bound + output_rounding(other, bound, dtype), free


def _other_delta(x: Attention, tile: Tile, values: Mapping[str, Tensor]) -> Tensor:
    """delta by the formula that the reference does not use: the two differ once P, dP or O is wrong."""
    if x.tau is None:
        return (values["P"] * values["dP"]).sum(-1)
    i, _ = x.positions(tile)
    share = x.tau[tile.heads, None] / (i[:, 0] + 1)
    return (x.do[tile.batch, tile.heads, tile.rows] * values["O"]).sum(-1) - share * values[
        "dP"
    ].sum(-1)


def judge_whole(
    actual: Tensor, expected: Tensor, bound: Tensor, *, exact: bool = False
) -> Judgement:
    """An intermediate that is summed over rows, whole.

    Args:
        exact: whether nothing of it was rounded to 16 bits but itself.
    """
    dtype, actual = actual.dtype, actual.double()
    bound = (
        stored(actual, expected, bound, dtype)
        if exact
        else bound + output_rounding(expected, bound, dtype)
    )
    right = _within(actual, expected, bound) | may_overflow(actual, expected, bound, dtype)
    return Judgement(actual, expected, bound, right)


def _within(actual: Tensor, expected: Tensor, bound: Tensor, *, poisoned: bool = False) -> Tensor:
    """Whether each element is right. A NaN or infinity never is, save where it is expected.

    Args:
        poisoned: where the expectation is not finite, because a parent was not, anything not finite is explained by it.
    """
    error = (actual - expected).abs()
    right = (actual == expected) | (error.isfinite() & (error <= bound))
    return right | (~actual.isfinite() & ~expected.isfinite()) if poisoned else right


def may_overflow(actual: Tensor, expected: Tensor, bound: Tensor, dtype: torch.dtype) -> Tensor:
    """Where an infinity is right: it has the right sign, and the exact value may lie outside the range of the dtype."""
    return (
        actual.isinf()
        & bound.isfinite()
        & (actual.sign() * expected + bound >= torch.finfo(dtype).max)
    )


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
