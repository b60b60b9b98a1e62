"""The sieve: large runs held to what the budget allows at least, block after block, on the device that has the results.

What passes is right by the whole budget, since `least` is never kinder. Of the key heads that do not pass, which are
not wrong yet, `compare` decides. No sums of all heads are held. Of each result of linear size its error and what it is
allowed at least are kept: by these a further run of the same values is judged without the reference.
"""

from __future__ import annotations

import math
from collections import UserDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..model.assignment import OUTPUTS
from ..model.case import Case
from ..model.intermediates import DERIVED
from ..reference import Attention, Tile, evaluate, tiles
from ..reference.attention import BY_KEY, BY_ROW, MATRICES, add_keys
from ..runtime.run import Trace, expected_shapes
from . import least
from .compare import Comparison, Evaluate, attention_of, compare, promoted
from .declared_precision import Precision, ordinary, output_rounding
from .finding import Finding
from .totals import TOTALS, Block, Totals, block_at, blocks

ROWS = {"cpu": 256, "cuda": 1024}
# Of a tile's matrices.
TILE_ELEMENTS = {"cpu": 1 << 19, "cuda": 1 << 24}
# So many times as many where tiles have several heads, so that a GPU waits less for what is launched on it. It has that
# many times these bytes.
FOR_SHORT, MEMORY_EACH = 4, 1 << 33
# So that three layouts need no more memory than their results. What is kept of a bound is never more than the bound; of
# an error it is off by half a unit in the last place.
KEPT_AS = torch.bfloat16
OFF = 2.0**-8
KEPT = 1.0 - OFF
SMALLEST_BOUND = 2.0**-120


def tile_elements(device: torch.device, *, of_several: bool) -> int:
    """Elements of a tile's matrices, of one key head's query heads or of several."""
    if not of_several or device.type == "cpu":
        return TILE_ELEMENTS[device.type]
    memory = torch.cuda.get_device_properties(device).total_memory
    return TILE_ELEMENTS[device.type] * max(1, min(FOR_SHORT, memory // MEMORY_EACH))


def key_heads_of_a_block(run: LargeRun) -> int:
    """How many key heads are judged at once."""
    case, device = run.case, run.values["q"].device
    rows, group = min(case.seqlen_q, ROWS[device.type]), case.heads // case.kv_heads
    return max(1, tile_elements(device, of_several=True) // (rows * case.seqlen_k * group))


class _LazyTensors(UserDict[str, Tensor]):
    """Known names, whose values are made when one of them is asked for."""

    def __init__(self, names: Iterable[str], make: Callable[[], Mapping[str, Tensor]]) -> None:
        super().__init__(dict.fromkeys(names, torch.empty(0)))
        self._make = make

    def __getitem__(self, name: str) -> Tensor:
        return self._make()[name]


@dataclass(frozen=True)
class LargeRun:
    """A run that is compared block by block."""

    case: Case
    values: Mapping[str, Tensor]
    """Its inputs, canonical, on the device of its results."""
    trace: Trace
    precision: Precision
    evaluate: Evaluate = evaluate

    @property
    def inputs(self) -> dict[str, Tensor]:
        """What the reference takes of the values."""
        others = (*DERIVED, *OUTPUTS)
        return {name: value for name, value in self.values.items() if name not in others}

    def problem(self, block: Block) -> Attention:
        return attention_of(block.case(self.case), block.inputs(self.case, self.inputs))

    def of(self, block: Block) -> dict[str, Tensor]:
        """A block's part of what came, without the totals, to which all blocks add."""
        return {
            name: block.of(value, self.case.axes(name))
            for name, value in self.trace.values.items()
            if name in (*BY_ROW, *BY_KEY)
        }

    def by_budget(self, block: Block, *, blame: bool = False) -> Comparison:
        """A block compared by the whole budget, without the totals."""
        of = (
            block.case(self.case),
            self.problem(block),
            Trace(self.of(block), self.trace.sources),
        )
        return compare(*of, self.precision, evaluate=self.evaluate, blame=blame, is_part=True)

    def is_like(self, other: LargeRun) -> bool:
        """Whether two runs have the same values and precision, and results of the same names and dtypes."""
        inputs, others = self.inputs, other.inputs
        dtypes, theirs = (
            {name: value.dtype for name, value in run.trace.values.items()}
            for run in (self, other)
        )
        if (self.precision, dtypes, inputs.keys()) != (other.precision, theirs, others.keys()):
            return False
        return all(
            one is others[name] or one.equal(others[name]) for name, one in inputs.items()
        )


class LeastErrors(NamedTuple):
    """How far the heads of an intermediate are off, [h] each, as multiples of what is allowed at least."""

    worst: Tensor
    squares: Tensor
    """The sum of the squares of all."""
    largest: Tensor
    """The largest error itself."""

    @property
    def right(self) -> Tensor:
        """[h] whether all of a head are allowed; a NaN of either makes a NaN, which is not."""
        return (self.worst <= 1.0) & ~self.squares.isnan()


def errors_of(error: Tensor, bound: Tensor, share: float = 1.0) -> LeastErrors:
    """Errors [h, ...] beside what is allowed of each at least: a share of `bound`, which is spoiled."""
    largest = torch.linalg.vector_norm(error.flatten(1), math.inf, dim=1)
    # 0 of 0 that are allowed is right.
    nearly_0 = least.NEARLY_0[bound.dtype]
    ratio = torch.div(error, bound.clamp_(min=nearly_0), out=bound).flatten(1)
    worst = torch.linalg.vector_norm(ratio, math.inf, dim=1) / share
    norm = torch.linalg.vector_norm(ratio, dim=1, dtype=torch.double) / share
    return LeastErrors(worst, norm.square(), largest)


class _JudgedRun:
    """What was found of a run, and what is kept of it; of some intermediates it may be known before."""

    def __init__(
        self, run: LargeRun, known: Mapping[str, Finding] = {}, undecided: int = 0, *, is_kept: bool = False
    ) -> None:  # fmt: skip
        self.run, self.undecided, self.matches = run, undecided, True
        self.findings, self.kept = dict[str, Finding](), dict[str, tuple[Tensor, Tensor]]()
        for name, value in run.trace.values.items():
            self.findings[name] = known.get(name) or Finding.empty(run.case, name, value.shape)
            if is_kept and name not in MATRICES:
                like = torch.empty_like(value, dtype=KEPT_AS)
                self.kept[name] = like, torch.empty_like(like)

    def part(self, tensor: Tensor, name: str, block: Block | None) -> Tensor:
        return tensor if block is None else block.of(tensor, self.run.case.axes(name))

    def errors_in(
        self, name: str, block: Block | None, expected: Tensor, bound: Tensor, free: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """The errors of a block, or of all, 0 where they are free, and what is allowed of each; kept."""
        value = self.part(self.run.trace.values[name], name, block)
        rounding = output_rounding(expected, bound, value.dtype)
        bound = (bound + rounding * ((expected != 0) | (bound > 0))) * KEPT
        value = value.double()
        error = (value - expected).masked_fill(value == expected, 0.0)
        if free is not None:
            error = error.masked_fill(free & ~value.isnan(), 0.0)
        if name in self.kept:
            errors, bounds = (self.part(kept, name, block) for kept in self.kept[name])
            errors.copy_(error)
            bounds.copy_(bound.where(bound > SMALLEST_BOUND, 0.0))
        return error, bound

    def judge(self, name: str, block: Block | None, error: Tensor, bound: Tensor) -> bool:
        """Notes what an intermediate of a block, or a total, comes to by its errors; whether all of it passes."""
        heads = error.shape[: 2 if self.findings[name].axes[0] in "b1" else 1]
        shape = (math.prod(heads), -1)
        errors = errors_of(error.reshape(shape), bound.clone().reshape(shape))
        self.note(name, block, errors, errors.right)
        return bool(errors.right.all())

    def note(self, name: str, block: Block | None, errors: LeastErrors, right: Tensor) -> None:
        """Notes the heads [h] of a block that are right, with ratios no less than those by the whole budget."""
        found, right = self.findings[name], right.cpu()
        worst = errors.worst.cpu().double().masked_fill(~right, 0.0)
        place: Any = ...
        if block is not None:
            place = block.batch, block.kv_heads if name in BY_KEY else block.heads
        found.ratio[place] = worst.reshape(found.ratio[place].shape)
        elements = int(right.sum()) * math.prod(found.shape[2:])
        found.total += elements
        found.counted += elements
        found.squares += float(errors.squares.cpu()[right].sum())
        if elements:
            found.max_abs_err = max(found.max_abs_err, float(errors.largest.cpu()[right].max()))

    def by_the_whole_budget(self, block: Block) -> None:
        """Judges a block by the whole budget, its parents' errors told apart from its own."""
        comparison = self.run.by_budget(block, blame=True)
        self.matches &= comparison.matches
        self.undecided += comparison.undecided
        for name, finding in comparison.findings.items():
            heads = block.kv_heads if name in BY_KEY else block.heads
            self.findings[name].add_heads(finding, block.batch, heads)
            if name in self.kept:
                self.errors_in(name, block, comparison.expected[name], comparison.bounds[name])

    def together(self, whole: Callable[[], Comparison]) -> Comparison:
        """The comparison of the run; `whole` makes the same at once where values are asked for."""
        run, shapes = self.run, expected_shapes(self.run.case)
        linear = [name for name in shapes if name not in MATRICES]
        findings = {name: self.findings[name] for name in shapes if name in self.findings}
        absent = tuple(name for name in shapes if name not in findings)
        expected = _LazyTensors(linear, lambda: whole().expected)
        bounds = _LazyTensors(linear, lambda: whole().bounds)
        return promoted(Comparison(
            findings, absent, ordinary(run.precision), self.undecided, expected, bounds,
            by_block=lambda *place: run.by_budget(block_at(run.case, *place)),
        ))  # fmt: skip


class _SiftedBlock:
    """One block beside the reference, by the least budget: put together from tiles, and judged at the end."""

    def __init__(self, judged: _JudgedRun, totals: Totals, block: Block) -> None:
        run = judged.run
        self.judged, self.totals, self.block = judged, totals, block
        self.precision = run.precision
        self.x = run.problem(block)
        self.came, zeros = run.of(block), self.x.q.new_zeros
        linear = {name: value.shape for name, value in self.came.items() if name not in MATRICES}
        self.expected = {name: zeros(shape) for name, shape in linear.items()}
        self.bounds = {
            name: zeros(shape) for name, shape in linear.items() if name not in BY_KEY
        }
        self.sums = least.LeastSums(self.x, linear.keys() & {*BY_KEY}, run.precision)
        self.live = zeros(self.x.q.shape[:3], dtype=torch.bool)
        self.errors: dict[str, list[LeastErrors]] = {name: [] for name in self.came}
        self.undecided = zeros(self.x.n_heads)
        self.right = zeros(self.x.n_heads, dtype=torch.bool) == 0

    def run(self) -> list[Block]:
        """Notes the heads that pass; the key heads that do not."""
        with least.tf32():
            for tile in tiles(self.x, rows=self._rows_of_a_tile()):
                self._tile(replace(tile, keys=self.x.seen_keys(tile)))
            for name, expected in self.expected.items():
                sums = self.sums.bound(name, expected) if name in BY_KEY else self.bounds[name]
                free = (
                    ~self.live if name == "LSE" else None
                )  # what no key is seen by, nothing reads
                error, bound = self.judged.errors_in(name, self.block, expected, sums, free)
                self.errors[name].append(errors_of(error[0], bound[0]))
        errors = {}
        for name, parts in self.errors.items():
            worst, squares, largest = map(torch.stack, zip(*parts, strict=True))
            errors[name] = LeastErrors(worst.amax(0), squares.sum(0), largest.amax(0))
        n_keys = self.x.k.shape[1]
        rights = [self.right, *(one.right for one in errors.values())]
        passed = torch.stack([right.reshape(n_keys, -1).all(1) for right in rights]).all(0).cpu()
        by_head = passed.repeat_interleave(self.x.n_heads // n_keys)
        for name, of in errors.items():
            self.judged.note(name, self.block, of, passed if name in BY_KEY else by_head)
        self.judged.undecided += int(self.undecided.cpu()[by_head].sum())
        case, first = self.judged.run.case, self.block.kv_heads.start
        failed = (~passed).nonzero().flatten().tolist()
        return [block_at(case, self.block.batch, first + head) for head in failed]

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


@dataclass
class LargeRuns:
    """Compares the large runs of one target; of several of the same values the reference is computed for the first."""

    several: bool = True
    """Whether more runs than one are to come."""
    _known: _JudgedRun | None = None

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
        judged = None
        if self._known is not None and self._known.run.is_like(run):
            judged = _again(self._known, run.trace)
        if judged is None:
            judged = _walk(run, tick, is_kept=self.several)
            self._known = judged if self.several and judged and judged.matches else None
        return None if judged is None else judged.together(whole)


def _walk(run: LargeRun, tick: Callable[[float], None], *, is_kept: bool) -> _JudgedRun | None:
    """The sieve, then the budget and blame of what it leaves, over every block; None where a total is to be told."""
    judged = _JudgedRun(run, is_kept=is_kept)
    totals = Totals(run.case, run.trace.values, like=run.values["q"])
    every = list(blocks(run.case, key_heads_of_a_block(run)))
    for done, block in enumerate(every, 1):
        for part in _SiftedBlock(judged, totals, block).run():
            judged.by_the_whole_budget(part)
        if not judged.matches and totals.expected:
            return None
        tick(done / len(every))
    for name, expected in totals.expected.items():
        errors = judged.errors_in(name, None, expected, totals.bound(name, run.precision))
        if not judged.judge(name, None, *errors):
            return None
    return judged


def _again(known: _JudgedRun, trace: Trace) -> _JudgedRun | None:
    """Another run of the same values, where it passes by what is known of them; None where that does not tell."""
    first, case = known.run.trace.values, known.run.case
    others = [name for name, value in trace.values.items() if not value.equal(first[name])]
    if not known.kept.keys() >= {*others}:
        return None
    alike = {name: found for name, found in known.findings.items() if name not in others}
    again = _JudgedRun(replace(known.run, trace=trace), alike, known.undecided)
    for name in others:
        for block in (None,) if name in TOTALS else blocks(case):
            both = (trace.values[name], first[name], *known.kept[name])
            value, before, error, bound = (known.part(of, name, block).double() for of in both)
            more = (value - before).masked_fill(value == before, 0.0)
            # The first run's error is known to so many bits.
            if not again.judge(name, block, (error + more).abs() + error.abs() * OFF, bound):
                return None
    return again
