"""Walks: a run's blocks one after another, beside the reference or beside a first run, each judged by what is allowed
at least.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ..model.case import Case
from ..reference import Attention, Tile, evaluate, tiles
from ..reference.attention import BY_KEY, BY_ROW, MATRICES, add_keys
from ..runtime.trace import Trace
from . import least
from .block import Block, blocks, key_heads_at_once
from .compare import attention_of
from .declared_precision import Precision, output_rounding
from .identities import PARTNERS, Sums, allowed, both_sums, residuals, share_of_reference, worst
from .kink import Kink
from .sifted import KEPT, KEPT_AS, OFF, SiftedRun, came_within
from .tally import Finding, Tally
from .totals import TOTALS, Totals

ROWS = {"cpu": 256, "cuda": 1024}
# Of a tile's matrices.
TILE_ELEMENTS = {"cpu": 1 << 19, "cuda": 1 << 24}
# So many times as many for a short case, so that a GPU waits less for what is launched on it. It has that many times
# these bytes.
FOR_SHORT, MEMORY_EACH = 4, 1 << 33
SMALLEST_BOUND = 2.0**-120
# Scores of a case from which a fused kernel pays for being compiled. It takes a tenth of a second off 2^30.
FUSED_SCORES = 1 << 29
OF_MATRICES = ("I5", "I6", "I7")


@dataclass
class _BlockJudgement:
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
        ratio = torch.div(error, bound.clamp_(min=least.NEARLY_0[bound.dtype]), out=bound).reshape(*error.shape[:2], -1)
        rows = torch.linalg.vector_norm(ratio, math.inf, dim=2) / share
        norm = torch.linalg.vector_norm(ratio, dtype=torch.double) / share
        self.add(name, rows, norm.square(), largest)

    def add(self, name: str, rows: Tensor, squares: Tensor, largest: Tensor) -> None:
        """A tile's worst ratio of each row [h, r], the sum of the squares of all ratios, and the largest error."""
        ratios = rows.amax(1)
        self.rows[name].append(rows)
        self.passed.append((ratios <= 1.0).all() & ~squares.isnan())
        self._note(name, ratios, squares, largest)

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
        self.sifted = SiftedRun(case, values, trace, precision)
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
        ratio = (sizes / bound.clamp(min=least.NEARLY_0[bound.dtype])).reshape(
            Tally(self.case, name, error.shape).shape
        )
        self.sifted.rows[name] = ratio.flatten(3).amax(3)
        self.sifted.ratios[name], self.sifted.largest[name] = self.sifted.rows[name].amax(2), sizes.amax()
        self.sifted.squares[name] = ratio.norm().square()
        self._passed.append((self.sifted.ratios[name] <= 1.0).all())

    def add(self, judged: _BlockJudgement) -> None:
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

    def ended(self) -> SiftedRun | None:
        """What passed, with its identities; None where one is broken, or a total is wrong."""
        self.sifted.invariants = [
            worst(key, side, *(torch.cat(parts) for parts in zip(*found, strict=True)))
            for (key, side), found in self._residuals.items()
        ]
        right = all(invariant.holds for invariant in self.sifted.invariants) and all(bool(one) for one in self._passed)
        return self.sifted if right else None


class PassedRun(_Walk):
    """A further run of values of which one has passed."""

    def __init__(self, known: SiftedRun, trace: Trace) -> None:
        super().__init__(known.case, known.values, trace, known.precision)
        self.known = known
        self.sifted.live, self.sifted.arriving, self.sifted.undecided = known.live, known.arriving, known.undecided
        self.sifted.seen = known.seen
        for name in trace.values.keys() & {*MATRICES}:  # which are the first's
            for of in ("ratios", "rows", "squares", "largest"):
                getattr(self.sifted, of)[name] = getattr(known, of)[name]

    def run(self) -> SiftedRun | None:
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

    def _block(self, block: Block) -> _BlockJudgement:
        inputs, judged, sums = block.inputs(self.case, self.values), _BlockJudgement(block), Sums("target")
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


class First(_Walk):
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
        self.is_fused = _is_fused(case, values["q"].device, trace)

    def run(self, tick: Callable[[float], None]) -> SiftedRun | None:
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
        most = TILE_ELEMENTS[self.device.type] * (_for_short(self.device) if heads > group else 1)
        return max(1, min(ROWS[self.device.type], most // (heads * self.case.seqlen_k)))

    def see(self, batch: int, x: Attention) -> None:
        """Notes which tiles of the maps of P, dP and dS the masks leave in a batch."""
        for name in self.sifted.trace.values.keys() & {*MATRICES}:
            grid = Tally(self.case, name, self.sifted.trace.values[name].shape).grid
            seen = self.sifted.seen.setdefault(name, torch.zeros(self.case.batch, *grid.counts, dtype=torch.bool))
            seen[batch] = grid.seen_of(x)

    def _key_heads_of_a_block(self) -> int:
        rows, group = min(self.case.seqlen_q, ROWS[self.device.type]), self.case.heads // self.case.kv_heads
        most = TILE_ELEMENTS[self.device.type] * _for_short(self.device)
        return max(1, most // (rows * self.case.seqlen_k * group))


def _for_short(device: torch.device) -> int:
    """How many times as large the tiles of several heads may be as those of one."""
    if device.type != "cuda":
        return 1
    return max(1, min(FOR_SHORT, torch.cuda.get_device_properties(device).total_memory // MEMORY_EACH))


def _is_fused(case: Case, device: torch.device, trace: Trace) -> bool:
    """Whether P, dP and dS are judged by a kernel of the tool's own."""
    is_known = case.family == "softmax" and not case.dropout and not trace.values.keys().isdisjoint(MATRICES)
    if device.type != "cuda" or case.scores < FUSED_SCORES or not is_known:
        return False
    from . import fused

    return fused.works(device)


class _BlockWalk:
    """One block beside the reference: what it gives is put together from tiles, and judged at the end."""

    def __init__(self, whole: First, block: Block) -> None:
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
        self.judged = _BlockJudgement(block, sums=self.sides)

    def run(self) -> _BlockJudgement | None:
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
        rounding = torch.finfo(came.dtype).eps / 2
        if self.whole.is_fused:
            self._judge_in_one_pass(name, tile, came, of_tile.terms(name, rounding))
            return
        bound = of_tile.of_matrix(name, expected, rounding)
        if name != "dP":
            self._note_rows(name, tile.rows, *(of.sum(-1, dtype=torch.double) for of in (came, expected, bound)))
        self.judged.judge(name, came - expected, bound, KEPT)

    def _judge_in_one_pass(self, name: str, tile: Tile, came: Tensor, terms: least.Terms) -> None:
        from . import fused

        sums = fused.rows_of(name, came, terms)
        if name != "dP":
            self._note_rows(name, tile.rows, sums.came, sums.expected, sums.bound)
        self.judged.add(name, sums.ratio / KEPT, sums.squares.sum() / KEPT**2, sums.largest.amax())

    def _note_rows(self, name: str, rows: slice, came: Tensor, expected: Tensor, bound: Tensor) -> None:
        """Notes the sums of rows of P or dS, and what is allowed of them; masked entries are 0 wherever all passes."""
        budget = bound * KEPT
        of_sides = (came, budget), (expected, budget * share_of_reference(self.precision))
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

    def _by_the_whole_budget(self) -> _BlockJudgement | None:
        """What the block comes to by the whole budget; None where it is wrong by that, too, or judged by it anyway."""
        if self.whole.is_part:
            return None
        comparison = self.whole.sifted.by_the_whole_budget(self.block)
        if not comparison.matches:
            return None
        trace = Trace(self.came, self.whole.sifted.trace.sources)
        judged = _BlockJudgement(self.block, sums=both_sums(self.x, trace, comparison), undecided=comparison.undecided)
        bounds = allowed(comparison, {name: value.dtype for name, value in self.came.items()})
        for name, finding in comparison.findings.items():
            judged.take(finding, like=self.x.q)
            if name in bounds:
                self.whole.keep(name, self.block, self.came[name].double() - comparison.expected[name], bounds[name])
        return judged
