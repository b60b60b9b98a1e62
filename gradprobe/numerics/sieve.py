"""The sieve: one block held to what the budget allows at least, tile by tile, on the device that has the results.

In float64 are the reference and what is subtracted from it alone. What passes is right by the whole budget, since
`least` is never kinder. What does not pass is not wrong yet.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..model.case import Case
from ..reference import Tile, evaluate, tiles
from ..reference.attention import BY_KEY, BY_ROW, MATRICES, add_keys
from . import least
from .block import Block, parts_of
from .declared_precision import output_rounding
from .large_run import KEPT, LargeRun, Parts
from .tally import Finding, Tally
from .totals import Totals

ROWS = {"cpu": 256, "cuda": 1024}
# Of a tile's matrices.
TILE_ELEMENTS = {"cpu": 1 << 19, "cuda": 1 << 24}
# So many times as many for a short case, so that a GPU waits less for what is launched on it. It has that many times
# these bytes.
FOR_SHORT, MEMORY_EACH = 4, 1 << 33


def tiles_of_short_cases(device: torch.device) -> int:
    """How many times as large the tiles of several heads may be as those of one."""
    if device.type != "cuda":
        return 1
    return max(
        1, min(FOR_SHORT, torch.cuda.get_device_properties(device).total_memory // MEMORY_EACH)
    )


def key_heads_of_a_block(run: LargeRun) -> int:
    """How many key heads are judged at once."""
    case, device = run.case, run.values["q"].device
    rows, group = min(case.seqlen_q, ROWS[device.type]), case.heads // case.kv_heads
    return max(
        1,
        TILE_ELEMENTS[device.type]
        * tiles_of_short_cases(device)
        // (rows * case.seqlen_k * group),
    )


@dataclass
class LeastErrors:
    """How far an intermediate is off, as multiples of what is allowed at least."""

    rows: Tensor
    """[h, r] the worst of each row."""
    squares: Tensor
    """[h] the sum of the squares of all."""
    largest: Tensor
    """[h] the largest error itself."""

    @property
    def right(self) -> Tensor:
        """[h] whether all of a head are allowed; a NaN of either makes a NaN, which is not."""
        return (self.rows <= 1.0).all(1) & ~self.squares.isnan()

    def finding(
        self, case: Case, name: str, shape: tuple[int, ...], seen: Tensor | None, right: Tensor
    ) -> Finding:
        """A Finding of the heads that are right, with ratios at least as large as those by the whole budget would be.

        Args:
            shape: of the intermediate in this case.
            seen: of a matrix, the tiles that masks leave, [R, C].
            right: [h].
        """
        tally = Tally(case, name, shape)
        rows, squares, largest, right = (
            one.cpu() for one in (self.rows, self.squares, self.largest, right)
        )
        rows = rows.double().masked_fill(~right[:, None], 0.0).reshape(tally.shape[:3])
        tally.grid.bound(rows, seen)
        counted = int(right.sum()) * math.prod(tally.shape[2:])
        return replace(
            tally.finding(),
            total=counted,
            max_abs_err=float(largest[right].max()) if counted else 0.0,
            ratio=rows.amax(2),
            rms_ratio=math.sqrt(float(squares[right].sum()) / max(counted, 1)),
            counted=counted,
            bounded=True,
        )


def errors_of(error: Tensor, bound: Tensor, share: float = 1.0) -> LeastErrors:
    """Errors [h, r, ...] beside what is allowed of each at least: a share of `bound`, which is spoiled."""
    largest = torch.linalg.vector_norm(error.flatten(1), math.inf, dim=1)
    # 0 of 0 that are allowed is right.
    ratio = torch.div(error, bound.clamp_(min=least.NEARLY_0[bound.dtype]), out=bound).reshape(
        *error.shape[:2], -1
    )
    rows = torch.linalg.vector_norm(ratio, math.inf, dim=2) / share
    norm = torch.linalg.vector_norm(ratio, dim=(1, 2), dtype=torch.double) / share
    return LeastErrors(rows, norm.square(), largest)


class SiftedBlock:
    """One block beside the reference, by the least budget: put together from tiles, and judged at the end."""

    def __init__(self, parts: Parts, totals: Totals, block: Block) -> None:
        run = parts.run
        self.parts, self.totals, self.block, self.precision = parts, totals, block, run.precision
        self.case, self.x = block.case(run.case), run.problem(block)
        self.came = run.of(block)
        linear = {name: value.shape for name, value in self.came.items() if name not in MATRICES}
        self.expected = {name: self.x.q.new_zeros(shape) for name, shape in linear.items()}
        self.bounds = {
            name: torch.empty_like(of) for name, of in self.expected.items() if name not in BY_KEY
        }
        self.sums = least.LeastSums(self.x, linear.keys() & {*BY_KEY}, run.precision)
        self.live = torch.zeros(self.x.q.shape[:3], dtype=torch.bool, device=self.x.q.device)
        self.errors: dict[str, list[LeastErrors]] = {name: [] for name in self.came}
        self.undecided = self.x.q.new_zeros(self.x.n_heads)
        self.right = torch.ones(self.x.n_heads, dtype=torch.bool, device=self.x.q.device)

    def run(self) -> list[Block]:
        """Leaves a Finding of the heads that pass; the key heads that do not."""
        with least.tf32():
            return self._run()

    def _run(self) -> list[Block]:
        for tile in tiles(self.x, rows=self._rows_of_a_tile()):
            self._tile(replace(tile, keys=self.x.seen_keys(tile)))
        for name, expected in self.expected.items():
            bound = self.sums.bound(name, expected) if name in BY_KEY else self.bounds[name]
            self._judge(name, expected, bound)
        found = {name: self._together(errors) for name, errors in self.errors.items()}
        group = self.x.n_heads // self.x.k.shape[1]
        by_key = self.right.reshape(-1, group).all(1)
        for name, errors in found.items():
            by_key = by_key & (
                errors.right if name in BY_KEY else errors.right.reshape(-1, group).all(1)
            )
        by_key = by_key.cpu()
        self._note(found, by_key)
        return [
            part
            for part, passed in zip(parts_of(self.block), by_key.tolist(), strict=True)
            if not passed
        ]

    def _note(self, found: Mapping[str, LeastErrors], by_key: Tensor) -> None:
        """Notes what the heads that pass come to."""
        findings, by_head = {}, by_key.repeat_interleave(self.x.n_heads // len(by_key))
        for name, errors in found.items():
            right = by_key if name in BY_KEY else by_head
            shape = tuple(self.came[name].shape)
            findings[name] = errors.finding(self.case, name, shape, self._map(name), right)
        self.parts.found.append((self.block, findings))
        self.parts.undecided += int(self.undecided.cpu()[by_head].sum())

    def _map(self, name: str) -> Tensor | None:
        """Which tiles of the map of a matrix the masks leave in this batch: of one head as of all."""
        if name not in MATRICES:
            return None
        at = name, self.block.batch
        if at not in self.parts.maps:
            self.parts.maps[at] = Tally(self.case, name, self.came[name].shape).grid.seen_of(
                self.x
            )
        return self.parts.maps[at]

    def _rows_of_a_tile(self) -> int:
        device, heads = self.x.q.device, self.x.n_heads
        of_several = heads > self.x.n_heads // self.x.k.shape[1]
        most = TILE_ELEMENTS[device.type] * (tiles_of_short_cases(device) if of_several else 1)
        return max(1, min(ROWS[device.type], most // (heads * self.x.n_key)))

    @staticmethod
    def _together(errors: list[LeastErrors]) -> LeastErrors:
        rows = torch.cat([one.rows for one in errors], 1)
        squares = torch.stack([one.squares for one in errors]).sum(0)
        return LeastErrors(rows, squares, torch.stack([one.largest for one in errors]).amax(0))

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
        for name in self.came.keys() & {*BY_ROW} - {*MATRICES}:
            self.expected[name][0, :, tile.rows] = values[name]
            self.bounds[name][0, :, tile.rows] = of_tile.of_row(name)
        for name in self.came.keys() & {*MATRICES}:
            self._judge_matrix(name, tile, values[name], of_tile, kink)
        add_keys(
            self.x,
            {name: self.expected[name][0] for name in BY_KEY if name in self.expected},
            tile,
            values,
        )
        of_tile.add_sums(self.sums)

    def _judge_matrix(
        self,
        name: str,
        tile: Tile,
        expected: Tensor,
        of_tile: least.LowerBounds,
        kink: least.Kink | None,
    ) -> None:
        """Judges P, dP or dS on a tile, and that all keys which it does not see have 0.

        On the kink dP is held to the nearer one of its two values.
        """
        came = self.came[name][0, :, tile.rows]
        for hidden in (came[..., : tile.keys.start], came[..., tile.keys.stop :]):
            if hidden.numel():
                self.right &= ~hidden.flatten(1).any(1)
        came = came[..., tile.keys]
        expected = kink.nearer(expected, came) if kink and name == "dP" else expected
        # Not all of `output_rounding`, with few passes and in place: these are large.
        bound = of_tile.of_matrix(name, expected, torch.finfo(came.dtype).eps / 2)
        self.errors[name].append(errors_of(came - expected, bound, KEPT))

    def _judge(self, name: str, expected: Tensor, bound: Tensor) -> None:
        """Judges all of an intermediate of linear size, and keeps its errors."""
        came = self.came[name]
        value = came.double()
        rounding = output_rounding(expected, bound, came.dtype) * ((expected != 0) | (bound > 0))
        bound = (bound + rounding) * KEPT
        error = (value - expected).masked_fill(value == expected, 0.0)
        if (
            name == "LSE"
        ):  # of a row that sees no key there are several conventions, and nothing reads it
            error = error.masked_fill(~self.live & ~value.isnan(), 0.0)
        self.parts.keep(name, self.block, error, bound)
        self.errors[name].append(errors_of(error[0], bound[0]))
