"""The sieve: whether all of a run is right, told by what the budget allows at least.

One walk over the tiles that the masks leave, block by block, on the device that has the results. In float64 are the
reference and what is subtracted from it alone. What passes is right by the whole budget, since `least` is never kinder.
What does not pass is not wrong yet: `compare` judges it then.

Kept of each result of linear size are its error and what it is allowed at least, in bfloat16: by these a further run of
the same values is judged without the reference.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache

import torch
from torch import Tensor

from ..model.assignment import OUTPUTS
from ..model.case import Case
from ..reference import Attention, Tile, evaluate, tiles
from ..reference.attention import BY_KEY, BY_ROW, MATRICES, add_keys
from ..runtime.trace import Trace, expected_shapes
from . import least
from .blocks import Block, blocks, key_heads_at_once
from .compare import BySieve, Comparison, Later, attention_of, compare
from .identities import PARTNERS, Invariant, Sums, allowed, both_sums, residuals, share_of_reference, worst
from .kink import Kink
from .precision import Precision, ordinary, output_rounding
from .tally import Finding, Tally
from .totals import TOTALS, Totals

LEAST_SCORES = 1 << 22
"""Scores of a case below which the whole budget costs next to nothing."""
ROWS = {"cpu": 256, "cuda": 1024}
# Of a tile's matrices; of a short case twice as many, so that a GPU waits less for what is launched on it.
TILE_ELEMENTS = {"cpu": 1 << 19, "cuda": 1 << 24}
FOR_SHORT = {"cpu": 1, "cuda": 2}
# Errors and bounds are kept as bfloat16, so that three layouts need no more memory than their results. What is kept of
# a bound is never more than the bound; of an error it is off by half a unit in the last place.
KEPT_AS = torch.bfloat16
OFF = 2.0**-8
SMALLEST_BOUND = 2.0**-120
# No more than any error that is not 0, so that its ratio to this is 1 at least, and more once a share is taken off.
NEARLY_0 = {torch.float: 2.0**-149, torch.double: 2.0**-1000}
KEPT = 1.0 - OFF
# What a run may be given beside the inputs of the reference.
NO_INPUTS = ("o", "lse", "delta", *OUTPUTS)
OF_MATRICES = ("I5", "I6", "I7")


@dataclass
class Sifted:
    """A run of which every element passed."""

    case: Case
    values: Mapping[str, Tensor]
    trace: Trace
    precision: Precision
    errors: dict[str, Tensor] = field(default_factory=dict)
    """By intermediate of linear size: the run's values less the expected ones."""
    bounds: dict[str, Tensor] = field(default_factory=dict)
    """What each of them is allowed at least, the rounding of its own dtype included."""
    ratios: dict[str, Tensor] = field(default_factory=dict)
    """[B, H], the worst error of each head as a multiple of what is allowed at least."""
    rows: dict[str, Tensor] = field(default_factory=dict)
    """The same of each row, [B, H, R]."""
    seen: dict[str, Tensor] = field(default_factory=dict)
    """Of P, dP and dS the tiles of their maps that masks leave, [B, R, C]."""
    squares: dict[str, Tensor] = field(default_factory=dict)
    """The sum of the squares of these multiples over all elements."""
    largest: dict[str, Tensor] = field(default_factory=dict)
    """The largest error."""
    invariants: list[Invariant] = field(default_factory=list)
    live: Tensor = field(default_factory=lambda: torch.empty(0))
    """[B, H, M] bool: the rows that see a key."""
    arriving: Tensor = field(default_factory=lambda: torch.empty(0))
    """[B, H, Dv]: dO summed over these rows."""
    undecided: int = 0
    """Entries of which rounding surely decides whether the lazy family's ReLU lets them through."""

    def by_the_whole_budget(self, block: Block) -> Comparison:
        """A block compared by the whole budget, without what other blocks add to."""
        x = attention_of(self.case, block.inputs(self.case, self.values))
        came = came_within(self.case, block, self.trace)
        return compare(block.case(self.case), x, Trace(came, self.trace.sources), self.precision, blame=False)

    def comparison(self, whole: Callable[[], Comparison]) -> Comparison:
        """The comparison of the run, with ratios that are at least as large as those by the whole budget would be.

        Args:
            whole: makes the same by the whole budget.
        """
        whole, shapes, given = cache(whole), expected_shapes(self.case), self.trace.values
        linear = [name for name in shapes if name not in MATRICES]
        summed = [name for name in ("P", "dS") if name in given]
        return Comparison(
            findings={name: self._finding(name) for name in shapes if name in given},
            absent=tuple(name for name in shapes if name not in given),
            precision=ordinary(self.precision),
            undecided=self.undecided,
            expected=Later(linear, lambda: whole().expected),
            bounds=Later(linear, lambda: whole().bounds),
            row_sums=Later(summed, lambda: whole().row_sums),
            leaks=dict.fromkeys(summed, 0),
            by_sieve=BySieve(self.bounds, self.by_the_whole_budget),
        )

    def _finding(self, name: str) -> Finding:
        values, ratio = self.trace.values[name], self.ratios[name].cpu()
        none = torch.zeros(ratio.shape, dtype=torch.long)
        rms = float(self.squares[name] / max(values.numel(), 1)) ** 0.5
        tally = Tally(self.case, name, values.shape)
        tally.grid.bound(self.rows[name].cpu(), self.seen.get(name))
        return Finding(
            name, self.case.axes(name), values.numel(), 0, float(self.largest[name]), ratio, rms, none, none,
            tally.wrong_rows, None, None, signs=tally.grid.signs(), cell=tally.grid.cell, bounded=True,
        )  # fmt: skip


class Sieve:
    """Sifts the runs of one target; where several have the same values the reference is computed for the first.

    Args:
        several: whether more runs than one are to come.
    """

    def __init__(self, *, several: bool = True) -> None:
        self.several = several
        self._known: Sifted | None = None

    def sift(
        self,
        case: Case,
        values: Mapping[str, Tensor],
        trace: Trace,
        precision: Precision,
        tick: Callable[[float], None] = lambda fraction: None,
        *,
        is_part: bool = False,
    ) -> Sifted | None:
        """A run's results, where every element and every identity passes; None where one does not, or may not be asked.

        Args:
            values: its inputs, canonical, on the device of its results.
            is_part: whether it is one block of a large case.
        """
        if not is_part and not _is_worth_it(case, precision):
            return None
        inputs = {name: value for name, value in values.items() if name not in NO_INPUTS}
        if self._known is not None and self._known.precision == precision and _same(self._known.values, inputs):
            again = _again(self._known, trace)
            if again is not None:
                return again
        sifted = _First(case, inputs, trace, precision, several=self.several, is_part=is_part).run(tick)
        self._known = sifted if self.several else None
        return sifted


def came_within(case: Case, block: Block, trace: Trace) -> dict[str, Tensor]:
    """A block's part of what came, of what is made within blocks: neither dBias, nor dSink, nor dTau."""
    within = trace.values.keys() & {*BY_ROW, *BY_KEY}
    return {name: block.of(value, case.axes(name)) for name, value in trace.values.items() if name in within}


def _is_worth_it(case: Case, precision: Precision) -> bool:
    """Whether a case is large, and what is rounded is not exact."""
    return case.scores >= LEAST_SCORES and not precision.exact


def _same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(
        value is other[name] or value.equal(other[name]) for name, value in one.items()
    )


def _again(known: Sifted, trace: Trace) -> Sifted | None:
    """Another run of the same values, where it passes by what is known of them; None where that does not tell."""
    first, came = known.trace.values, trace.values
    if first.keys() != came.keys() or any(came[name].dtype != value.dtype for name, value in first.items()):
        return None
    if any(not came[name].equal(first[name]) for name in MATRICES if name in came):
        return None
    if all(came[name].equal(value) for name, value in first.items()):
        return replace(known, trace=trace)
    return _Again(known, trace).run()


@dataclass
class _Judged:
    """What a block came to."""

    block: Block
    ratios: dict[str, Tensor] = field(default_factory=dict)
    """By intermediate, [h]."""
    rows: dict[str, list[Tensor]] = field(default_factory=lambda: defaultdict(list))
    """The same of each row, [h, r] of one tile after another; none where the whole budget judged the block."""
    squares: dict[str, Tensor] = field(default_factory=dict)
    largest: dict[str, Tensor] = field(default_factory=dict)
    passed: list[Tensor] = field(default_factory=list)
    sums: tuple[Sums, ...] = ()
    undecided: int = 0

    def judge(self, name: str, error: Tensor, bound: Tensor, share: float = 1.0) -> None:
        """Errors [h, r, ...] beside what is allowed of each at least: a share of `bound`, which is spoiled."""
        largest = torch.linalg.vector_norm(error, math.inf)
        # 0 of 0 that are allowed is right; a NaN of either makes a NaN, which does not pass.
        ratio = torch.div(error, bound.clamp_(min=NEARLY_0[bound.dtype]), out=bound).reshape(*error.shape[:2], -1)
        rows = torch.linalg.vector_norm(ratio, math.inf, dim=2) / share
        norm = torch.linalg.vector_norm(ratio, dtype=torch.double) / share
        ratios = rows.amax(1)
        self.rows[name].append(rows)
        self.passed.append((ratios <= 1.0).all() & ~norm.isnan())
        self._note(name, ratios, norm.square(), largest)

    def take(self, finding: Finding, like: Tensor) -> None:
        """What a comparison found of the block."""
        squares = like.new_tensor(finding.rms_ratio**2 * finding.total)
        self._note(finding.name, finding.ratio[0].to(like), squares, like.new_tensor(finding.max_abs_err))

    def _note(self, name: str, ratios: Tensor, squares: Tensor, largest: Tensor) -> None:
        known = self.ratios.get(name)
        self.ratios[name] = ratios if known is None else known.maximum(ratios)
        self.squares[name] = squares if known is None else self.squares[name] + squares
        self.largest[name] = largest if known is None else self.largest[name].maximum(largest)


class _Walk:
    """What the blocks of a run come to, one after another."""

    def __init__(
        self, case: Case, values: Mapping[str, Tensor], trace: Trace, precision: Precision, *, several: bool = True
    ) -> None:
        self.case, self.values, self.precision = case, values, precision
        self.sifted = Sifted(case, values, trace, precision)
        self._passed: list[Tensor] = []
        self._residuals: dict[tuple[str, str], list[tuple[Tensor, Tensor]]] = defaultdict(list)
        for name, value in trace.values.items():
            of_rows = Tally(case, name, value.shape).shape[:3]
            self.sifted.ratios[name] = value.new_zeros(of_rows[:2], dtype=torch.double)
            self.sifted.rows[name] = value.new_zeros(of_rows, dtype=torch.float)
            self.sifted.squares[name] = self.sifted.largest[name] = value.new_zeros((), dtype=torch.double)
            if name not in MATRICES:
                for kept in (self.sifted.errors, self.sifted.bounds) if several else (self.sifted.bounds,):
                    kept[name] = torch.empty(value.shape, dtype=KEPT_AS, device=value.device)

    def keep(self, name: str, block: Block | None, error: Tensor, bound: Tensor) -> None:
        """Keeps errors [1, h, r, ...] of a block, or those of all blocks, and what is allowed of each."""
        for kept, of in ((self.sifted.errors, error), (self.sifted.bounds, bound.where(bound > SMALLEST_BOUND, 0.0))):
            if name in kept:
                (kept[name] if block is None else block.of(kept[name], self.case.axes(name))).copy_(of)

    def judge_total(self, name: str, error: Tensor, bound: Tensor, unsure: Tensor | float = 0.0) -> None:
        """Judges all of what all blocks add to, and keeps its errors, each known but for so much."""
        self.keep(name, None, error, bound)
        sizes = error.abs() + unsure
        ratio = (sizes / bound.clamp(min=NEARLY_0[bound.dtype])).reshape(Tally(self.case, name, error.shape).shape)
        self.sifted.rows[name] = ratio.flatten(3).amax(3)
        self.sifted.ratios[name], self.sifted.largest[name] = self.sifted.rows[name].amax(2), sizes.amax()
        self.sifted.squares[name] = ratio.norm().square()
        self._passed.append((self.sifted.ratios[name] <= 1.0).all())

    def add(self, judged: _Judged) -> None:
        """A block that passed."""
        block, sifted = judged.block, self.sifted
        for name, ratio in judged.ratios.items():
            place = block.batch, block.kv_heads if name in BY_KEY else block.heads
            sifted.ratios[name][place] = ratio
            sifted.rows[name][place] = torch.cat(judged.rows[name], 1) if name in judged.rows else ratio[:, None]
            sifted.squares[name] = sifted.squares[name] + judged.squares[name]
            sifted.largest[name] = sifted.largest[name].maximum(judged.largest[name])
        sifted.undecided += judged.undecided
        of_block = (block.of(sifted.arriving, "bhe"), block.of(sifted.live, "bhm"))
        for sums in judged.sums:
            for key, residual, budget in residuals(block.case(self.case), sums, *of_block):
                self._residuals[key, sums.of].append((residual.flatten(), budget.flatten()))

    def ended(self) -> Sifted | None:
        """What passed, with its identities; None where one is broken, or a total is wrong."""
        self.sifted.invariants = [
            worst(key, side, *(torch.cat(parts) for parts in zip(*found, strict=True)))
            for (key, side), found in self._residuals.items()
        ]
        right = all(invariant.holds for invariant in self.sifted.invariants) and all(bool(one) for one in self._passed)
        return self.sifted if right else None


class _Again(_Walk):
    """A further run of values of which one has passed."""

    def __init__(self, known: Sifted, trace: Trace) -> None:
        super().__init__(known.case, known.values, trace, known.precision)
        self.known = known
        self.sifted.live, self.sifted.arriving, self.sifted.undecided = known.live, known.arriving, known.undecided
        self.sifted.seen = known.seen
        for name in trace.values.keys() & {*MATRICES}:  # which are the first's
            for of in ("ratios", "rows", "squares", "largest"):
                getattr(self.sifted, of)[name] = getattr(known, of)[name]

    def run(self) -> Sifted | None:
        found = [self._block(block) for block in blocks(self.case, key_heads_at_once(self.case))]
        if not bool(torch.stack([one for judged in found for one in judged.passed]).all()):
            return None
        for judged in found:
            self.add(judged)
        for name in self.known.errors.keys() & {*TOTALS}:
            self.judge_total(name, *self._beside_the_first(name, None)[1:])
        ended = self.ended()
        if ended is not None:
            of_matrices = [one for one in self.known.invariants if one.key in OF_MATRICES]
            ended.invariants += [one for one in self.known.invariants if one.of == "reference"] + of_matrices
        return ended

    def _block(self, block: Block) -> _Judged:
        inputs, judged, sums = block.inputs(self.case, self.values), _Judged(block), Sums("target")
        for name in self.known.errors.keys() - {*TOTALS}:
            value, error, bound, unsure = self._beside_the_first(name, block)
            self.keep(name, block, error, bound)
            if name in PARTNERS:
                sums.add(name, inputs[PARTNERS[name]].double(), value, bound)
            judged.judge(name, (error.abs() + unsure)[0], bound[0])
        judged.sums = (sums,)
        return judged

    def _beside_the_first(self, name: str, block: Block | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """All of an intermediate, or a block: what came, its error, what it is allowed, how far that error is known."""
        known, axes = self.known, self.case.axes(name)
        value, first, before, bound = (
            (of[name] if block is None else block.of(of[name], axes)).double()
            for of in (self.sifted.trace.values, known.trace.values, known.errors, known.bounds)
        )
        # The first run's error is known to so many bits.
        return value, before + (value - first).masked_fill(value == first, 0.0), bound, before.abs() * OFF


class _First(_Walk):
    """A run beside the reference."""

    def __init__(
        self,
        case: Case,
        values: Mapping[str, Tensor],
        trace: Trace,
        precision: Precision,
        *,
        several: bool,
        is_part: bool,
    ) -> None:
        super().__init__(case, values, trace, precision, several=several)
        self.is_part = is_part
        self.device = values["q"].device
        self.sifted.live = torch.zeros(values["q"].shape[:3], dtype=torch.bool, device=self.device)
        self.sifted.arriving = torch.zeros_like(values["do"][:, :, 0], dtype=torch.double)
        self.totals = Totals(case, trace.values, like=values["q"])

    def run(self, tick: Callable[[float], None]) -> Sifted | None:
        every = list(blocks(self.case, self._key_heads_of_a_block()))
        for done, block in enumerate(every, 1):
            with least.tf32():
                judged = _BlockWalk(self, block).run()
            if judged is None:
                return None
            self.add(judged)
            tick(done / len(every))
        for name, expected in self.totals.expected.items():
            value, bound = self.sifted.trace.values[name], self.totals.bound(name, self.precision)
            bound = (bound + output_rounding(expected, bound, value.dtype)) * KEPT
            self.judge_total(name, (value.double() - expected).masked_fill(value == expected, 0.0), bound)
        return self.ended()

    def rows_of_a_tile(self, heads: int) -> int:
        """How many rows a tile of so many heads has."""
        group = self.case.heads // self.case.kv_heads
        most = TILE_ELEMENTS[self.device.type] * (FOR_SHORT[self.device.type] if heads > group else 1)
        return max(1, min(ROWS[self.device.type], most // (heads * self.case.seqlen_k)))

    def see(self, batch: int, x: Attention) -> None:
        """Notes which tiles of the maps of P, dP and dS the masks leave in a batch."""
        for name in self.sifted.trace.values.keys() & {*MATRICES}:
            grid = Tally(self.case, name, self.sifted.trace.values[name].shape).grid
            seen = self.sifted.seen.setdefault(name, torch.zeros(self.case.batch, *grid.counts, dtype=torch.bool))
            seen[batch] = grid.seen_of(x)

    def _key_heads_of_a_block(self) -> int:
        rows, group = min(self.case.seqlen_q, ROWS[self.device.type]), self.case.heads // self.case.kv_heads
        most = TILE_ELEMENTS[self.device.type] * FOR_SHORT[self.device.type]
        return max(1, most // (rows * self.case.seqlen_k * group))


class _BlockWalk:
    """One block beside the reference: what it gives is put together from tiles, and judged at the end."""

    def __init__(self, whole: _First, block: Block) -> None:
        case = whole.case
        self.whole, self.block, self.case, self.precision = whole, block, block.case(case), whole.precision
        self.x = attention_of(case, block.inputs(case, whole.values))
        self.came = came_within(case, block, whole.sifted.trace)
        linear = {name: value.shape for name, value in self.came.items() if name not in MATRICES}
        self.expected = {name: self.x.q.new_zeros(shape) for name, shape in linear.items()}
        self.bounds = {name: torch.empty_like(of) for name, of in self.expected.items() if name not in BY_KEY}
        self.sums = least.LeastSums(self.x, linear.keys() & {*BY_KEY}, whole.precision)
        self.sides = Sums("target"), Sums("reference")
        self.live = block.of(whole.sifted.live, "bhm")
        self.judged = _Judged(block, sums=self.sides)

    def run(self) -> _Judged | None:
        """What the block came to; None where it is wrong."""
        for tile in tiles(self.x, rows=self.whole.rows_of_a_tile(self.x.n_heads)):
            self._tile(replace(tile, keys=self.x.seen_keys(tile)))
        if self.block.kv_heads.start == 0:  # of one head as of all
            self.whole.see(self.block.batch, self.x)
        self.block.of(self.whole.sifted.arriving, "bhe").copy_((self.x.do * self.live[..., None]).sum(2))
        for name, expected in self.expected.items():
            bound = self.sums.bound(name, expected) if name in BY_KEY else self.bounds[name]
            self._judge(name, self.came[name], expected, bound)
        return self.judged if bool(torch.stack(self.judged.passed).all()) else self._by_the_whole_budget()

    def _tile(self, tile: Tile) -> None:
        wanted = {"O"} | ({"dQ"} & self.came.keys()) | self.whole.totals.expected.keys()
        values = evaluate(self.x, tile, None, wanted)
        kink = least.least_kink(self.x, tile, values, self.precision)
        for name in ("S", "dPE"):  # of no more use, and large
            del values[name]
        of_tile = least.Least(self.x, tile, values, self.precision, kink)
        self.judged.undecided += kink.count if kink else 0
        self.whole.totals.add(self.block, of_tile)
        self.live[0, :, tile.rows] = values["valid"].any(-1)
        for name in self.came.keys() & {*BY_ROW} - {*MATRICES}:
            self.expected[name][0, :, tile.rows] = values[name]
            self.bounds[name][0, :, tile.rows] = of_tile.of_row(name)
        for name in self.came.keys() & {*MATRICES}:
            self._judge_matrix(name, tile, values[name], of_tile, kink)
        add_keys(self.x, {name: self.expected[name][0] for name in BY_KEY if name in self.expected}, tile, values)
        of_tile.add_sums(self.sums)

    def _judge_matrix(self, name: str, tile: Tile, expected: Tensor, of_tile: least.Least, kink: Kink | None) -> None:
        """Judges P, dP or dS on a tile, and that all keys which it does not see have 0; notes the sums of its rows.

        On the kink dP is held to the nearer one of its two values.
        """
        came = self.came[name][0, :, tile.rows]
        hidden = (came[..., : tile.keys.start], came[..., tile.keys.stop :])
        self.judged.passed += [~part.any() for part in hidden if part.numel()]
        came = came[..., tile.keys]
        expected = kink.nearer(expected, came) if kink and name == "dP" else expected
        # Not all of `output_rounding`, with few passes and in place: these are large.
        bound = of_tile.of_matrix(name, expected, torch.finfo(came.dtype).eps / 2)
        if name != "dP":
            budget = bound.sum(-1, dtype=torch.double) * KEPT
            of_reference = (expected.sum(-1), budget * share_of_reference(self.precision))
            self._note_rows(name, tile.rows, (came.sum(-1, dtype=torch.double), budget), of_reference)
        self.judged.judge(name, came - expected, bound, KEPT)

    def _note_rows(self, name: str, rows: slice, *of_sides: tuple[Tensor, Tensor]) -> None:
        """Notes the sums of rows of P or dS, and what is allowed of them; masked entries are 0 wherever all passes."""
        for side, found in zip(self.sides, of_sides, strict=True):
            none = self.x.q.new_zeros(self.live.shape)
            for into, values in zip(side.over_row.setdefault(name, (none, none.clone())), found, strict=True):
                into[0, :, rows] = values
            side.leaks = 0

    def _judge(self, name: str, came: Tensor, expected: Tensor, bound: Tensor) -> None:
        """Judges all of an intermediate of linear size, and keeps its errors."""
        value, (bound, of_reference) = came.double(), self._allowed(came, expected, bound)
        error = (value - expected).masked_fill(value == expected, 0.0)
        if name == "LSE":  # of a row that sees no key there are several conventions, and nothing reads it
            error = error.masked_fill(~self.live & ~value.isnan(), 0.0)
        self.whole.keep(name, self.block, error, bound)
        if name in PARTNERS:
            partner = getattr(self.x, PARTNERS[name])
            for side, of, budget in zip(self.sides, (value, expected), (bound, of_reference), strict=True):
                side.add(name, partner, of, budget)
        self.judged.judge(name, error[0], bound[0])

    def _allowed(self, came: Tensor, expected: Tensor, bound: Tensor) -> tuple[Tensor, Tensor]:
        """What the target may err by, the rounding of its own dtype included; and what its reference may."""
        rounding = output_rounding(expected, bound, came.dtype) * ((expected != 0) | (bound > 0))
        return (bound + rounding) * KEPT, bound * share_of_reference(self.precision)

    def _by_the_whole_budget(self) -> _Judged | None:
        """What the block comes to by the whole budget; None where it is wrong by that, too, or judged by it anyway."""
        if self.whole.is_part:
            return None
        comparison = self.whole.sifted.by_the_whole_budget(self.block)
        if not comparison.matches:
            return None
        trace = Trace(self.came, self.whole.sifted.trace.sources)
        judged = _Judged(self.block, sums=both_sums(self.x, trace, comparison), undecided=comparison.undecided)
        bounds = allowed(comparison, {name: value.dtype for name, value in self.came.items()})
        for name, finding in comparison.findings.items():
            judged.take(finding, like=self.x.q)
            if name in bounds:
                self.whole.keep(name, self.block, self.came[name].double() - comparison.expected[name], bounds[name])
        return judged
