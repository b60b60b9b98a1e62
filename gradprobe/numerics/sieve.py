"""The sieve: large runs held to what the budget allows at least, block after block, on the device that has the results.

What passes is right by the whole budget, since `least` is never kinder. Of the key heads that do not pass, which are
not wrong yet, `compare` decides. Both leave a Finding of their heads. No sums of all heads are held.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..reference import Tile, evaluate, tiles
from ..reference.attention import BY_KEY, BY_ROW, MATRICES, add_keys
from ..runtime.run import Trace
from . import least
from .block import Block, block_at, blocks
from .compare import Comparison, allowed
from .declared_precision import output_rounding
from .large_run import KEPT, KEPT_AS, OFF, JudgedRun, LargeRun, LeastErrors, errors_of
from .totals import TOTALS, Totals

ROWS = {"cpu": 256, "cuda": 1024}
# Of a tile's matrices.
TILE_ELEMENTS = {"cpu": 1 << 19, "cuda": 1 << 24}
# So many times as many where tiles have several heads, so that a GPU waits less for what is launched on it. It has that
# many times these bytes.
FOR_SHORT, MEMORY_EACH = 4, 1 << 33


def tile_elements(device: torch.device, *, of_several: bool) -> int:
    """Elements of a tile's matrices, of one key head's query heads or of several."""
    times = 1
    if of_several and device.type == "cuda":
        memory = torch.cuda.get_device_properties(device).total_memory
        times = max(1, min(FOR_SHORT, memory // MEMORY_EACH))
    return TILE_ELEMENTS[device.type] * times


def key_heads_of_a_block(run: LargeRun) -> int:
    """How many key heads are judged at once."""
    case, device = run.case, run.values["q"].device
    rows, group = min(case.seqlen_q, ROWS[device.type]), case.heads // case.kv_heads
    return max(1, tile_elements(device, of_several=True) // (rows * case.seqlen_k * group))


class SiftedBlock:
    """One block beside the reference, by the least budget: put together from tiles, and judged at the end."""

    def __init__(self, judged: JudgedRun, totals: Totals, block: Block) -> None:
        run = judged.run
        self.judged, self.totals, self.block = judged, totals, block
        self.precision = run.precision
        self.x = run.problem(block)
        self.came, zeros = run.of(block), self.x.q.new_zeros
        linear = {name: value.shape for name, value in self.came.items() if name not in MATRICES}
        self.expected = {name: zeros(shape) for name, shape in linear.items()}
        self.bounds = {name: zeros(shape) for name, shape in linear.items() if name not in BY_KEY}
        self.sums = least.LeastSums(self.x, linear.keys() & {*BY_KEY}, run.precision)
        self.live = zeros(self.x.q.shape[:3], dtype=torch.bool)
        self.errors: dict[str, list[LeastErrors]] = {name: [] for name in self.came}
        self.undecided = zeros(self.x.n_heads)
        self.right = zeros(self.x.n_heads, dtype=torch.bool) == 0

    def run(self) -> list[Block]:
        """Leaves a Finding of the heads that pass; the key heads that do not."""
        with least.tf32():
            for tile in tiles(self.x, rows=self._rows_of_a_tile()):
                self._tile(replace(tile, keys=self.x.seen_keys(tile)))
            for name, expected in self.expected.items():
                sums = self.sums.bound(name, expected) if name in BY_KEY else self.bounds[name]
                self._judge(name, expected, sums)
        errors = {name: LeastErrors.joined(parts) for name, parts in self.errors.items()}
        n_keys = self.x.k.shape[1]
        rights = [self.right, *(one.right for one in errors.values())]
        passed = torch.stack([right.reshape(n_keys, -1).all(1) for right in rights]).all(0).cpu()
        self._note(errors, passed)
        group, first = self.x.n_heads // n_keys, self.block.kv_heads.start
        failed = (~passed).nonzero().flatten().tolist()
        return [block_at(self.block.batch, first + head, group) for head in failed]

    def _note(self, errors: Mapping[str, LeastErrors], passed: Tensor) -> None:
        """Notes what the key heads that pass come to."""
        by_head = passed.repeat_interleave(self.x.n_heads // len(passed))
        for name, of in errors.items():
            self.judged.note(name, self.block, of, passed if name in BY_KEY else by_head)
        self.judged.undecided += int(self.undecided.cpu()[by_head].sum())

    def _rows_of_a_tile(self) -> int:
        device, of_several = self.x.q.device, self.x.k.shape[1] > 1
        most = tile_elements(device, of_several=of_several)
        return max(1, min(ROWS[device.type], most // (self.x.n_heads * self.x.n_key)))

    def _tile(self, tile: Tile) -> None:
        wanted = {"O"} | ({"dQ"} & self.came.keys()) | self.totals.expected.keys()
        values = evaluate(self.x, tile, None, wanted)
        kink = least.least_kink(self.x, tile, values, self.precision)
        for name in ("S", "dPE"):  # of no more use, and large
            del values[name]
        of_tile = least.LowerBounds(self.x, tile, values, self.precision, kink)
        if kink:
            self.undecided += kink.counts
        self.totals.add(self.block, of_tile)
        self.live[0, :, tile.rows] = values["valid"].any(-1)
        for name in self.came.keys() & {*BY_ROW}:
            if name in MATRICES:
                self._judge_matrix(name, tile, values[name], of_tile)
            else:
                self.expected[name][0, :, tile.rows] = values[name]
                self.bounds[name][0, :, tile.rows] = of_tile.of_row(name)
        by_key = {name: self.expected[name][0] for name in BY_KEY if name in self.expected}
        add_keys(self.x, by_key, tile, values)
        of_tile.add_sums(self.sums)

    def _judge_matrix(
        self, name: str, tile: Tile, expected: Tensor, of_tile: least.LowerBounds
    ) -> None:
        """Judges P, dP or dS on a tile, and that all keys which it does not see have 0.

        On the kink dP is held to the nearer one of its two values.
        """
        came = self.came[name][0, :, tile.rows]
        for hidden in (came[..., : tile.keys.start], came[..., tile.keys.stop :]):
            if hidden.numel():
                self.right &= ~hidden.flatten(1).any(1)
        came = came[..., tile.keys]
        if of_tile.kink and name == "dP":
            expected = of_tile.kink.nearer(expected, came)
        # Not all of `output_rounding`, with few passes and in place: these are large.
        bound = of_tile.of_matrix(name, expected, torch.finfo(came.dtype).eps / 2)
        self.errors[name].append(errors_of(came - expected, bound, KEPT))

    def _judge(self, name: str, expected: Tensor, bound: Tensor) -> None:
        """Judges all of an intermediate of linear size, and keeps its errors."""
        value = self.came[name].double()
        rounding = output_rounding(expected, bound, self.came[name].dtype)
        bound = (bound + rounding * ((expected != 0) | (bound > 0))) * KEPT
        error = (value - expected).masked_fill(value == expected, 0.0)
        if name == "LSE":  # nothing reads that of a row that sees no key
            error = error.masked_fill(~self.live & ~value.isnan(), 0.0)
        self.judged.keep(name, self.block, error, bound)
        self.errors[name].append(errors_of(error[0], bound[0]))


@dataclass
class LargeRuns:
    """Compares the large runs of one target; of several of the same values the reference is computed for the first."""

    several: bool = True
    """Whether more runs than one are to come."""
    _known: JudgedRun | None = None

    def compared(
        self,
        run: LargeRun,
        whole: Callable[[], Comparison],
        tick: Callable[[float], None] = lambda fraction: None,
    ) -> Comparison | None:
        """What all blocks come to; None where a total has to be judged with all blocks at once.

        Args:
            whole: compares the run at once, by the whole budget.
        """
        if self._known is not None and self._known.run.is_like(run):
            again = _again(self._known, run.trace)
            if again is not None:
                return again.together(whole)
        judged = _walk(run, tick, is_kept=self.several)
        self._known = judged if self.several and judged is not None and judged.matches else None
        return None if judged is None else judged.together(whole)


def _walk(run: LargeRun, tick: Callable[[float], None], *, is_kept: bool) -> JudgedRun | None:
    """Both passes over every block; None where something is wrong beside a total, or a total does not pass."""
    judged, totals = JudgedRun(run), Totals(run.case, run.trace.values, like=run.values["q"])
    for name, value in run.trace.values.items():
        if is_kept and name not in MATRICES:
            like = torch.empty_like(value, dtype=KEPT_AS)
            judged.kept[name] = like, torch.empty_like(like)
    every = list(blocks(run.case, key_heads_of_a_block(run)))
    for done, block in enumerate(every, 1):
        for part in SiftedBlock(judged, totals, block).run():
            _by_the_whole_budget(judged, part)
        if not judged.matches and totals.expected:
            return None
        tick(done / len(every))
    return judged if all(_passes(judged, totals, name) for name in totals.expected) else None


def _by_the_whole_budget(judged: JudgedRun, block: Block) -> None:
    """Judges a block by the whole budget, its parents' errors told apart from its own."""
    comparison = judged.run.by_budget(block, blame=True)
    judged.note_compared(block, comparison)
    for name, came in judged.run.of(block).items():
        if name in judged.kept:
            bound = allowed(comparison, name, came.dtype) * KEPT
            judged.keep(name, block, came.double() - comparison.expected[name], bound)


def _passes(judged: JudgedRun, totals: Totals, name: str) -> bool:
    """Judges what all blocks add to."""
    value, expected = judged.run.trace.values[name], totals.expected[name]
    bound = totals.bound(name, judged.run.precision)
    bound = (bound + output_rounding(expected, bound, value.dtype)) * KEPT
    error = (value.double() - expected).masked_fill(value == expected, 0.0)
    judged.keep(name, None, error, bound)
    return judged.judge(name, None, error, bound)


def _again(known: JudgedRun, trace: Trace) -> JudgedRun | None:
    """Another run of the same values, where it passes by what is known of them; None where that does not tell."""
    first, case = known.run.trace.values, known.run.case
    others = [name for name, value in trace.values.items() if not value.equal(first[name])]
    if not known.kept.keys() >= {*others}:
        return None
    alike = {name: tally for name, tally in known.tallies.items() if name not in others}
    again = JudgedRun(replace(known.run, trace=trace), alike, known.undecided)
    for name in others:
        for block in (None,) if name in TOTALS else blocks(case):
            both = (trace.values[name], first[name], *known.kept[name])
            value, before, error, bound = (known.part(of, name, block).double() for of in both)
            more = (value - before).masked_fill(value == before, 0.0)
            # The first run's error is known to so many bits.
            if not again.judge(name, block, (error + more).abs() + error.abs() * OFF, bound):
                return None
    return again
