"""Grid: the worst error of each tile of each head, as signs of one letter; what a report keeps of a whole map."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..model.case import Case
from ..model.intermediates import slots
from ..model.layout_run import HIDDEN, LEVELS, WITHIN
from ..reference import Attention, Tile
from ..reference.attention import MATRICES

# Of one head: 128 heads of ten intermediates take 300 kB of a report at most.
MOST_CELLS = 256


def tile_of(case: Case, axes: str, cols: int) -> tuple[int, int]:
    """Score tiles for matrices; whole rows in BLOCK_M or BLOCK_N steps for the others, eight columns to a cell."""
    _, _, row, col = slots(axes)
    return case.block_m if row == "m" else case.block_n, case.block_n if col == "n" else min(cols, 8)


class Grid:
    """The worst ratios of tiles, of neighbours together where there are many."""

    def __init__(self, case: Case, name: str, shape: tuple[int, ...]) -> None:
        """
        Args:
            shape: [B, H, R, C] of the intermediate.
        """
        rows, cols = tile_of(case, case.axes(name), shape[3])
        while (counts := (-(-shape[2] // rows), -(-shape[3] // cols)))[0] * counts[1] > MOST_CELLS:
            is_tall = counts[0] >= counts[1] and case.block_m > 1  # else a line is a row that was shown
            rows, cols = (rows * 2, cols) if is_tall or counts[1] == 1 else (rows, cols * 2)
        self.cell, self.counts = (rows, cols), counts
        self._worst = torch.zeros(*shape[:2], *counts, dtype=torch.double)
        self._flows = torch.zeros(self._worst.shape, dtype=torch.bool)
        """Whether anything but 0 is expected there."""
        self._seen = torch.full(self._worst.shape, name not in MATRICES)
        """Whether the masks leave anything of it."""

    def add(self, tile: Tile, first_key: int, ratio: Tensor, expected: Tensor, valid: Tensor | None) -> Tensor:
        """Adds a tile, with values [h, r, c]; its worst ratio of each head, [h]."""
        start = tile.rows.start, first_key
        worst = self._pooled(ratio, start)
        at_row, at_col = (first // size for first, size in zip(start, self.cell, strict=True))
        rows, cols = (slice(at, at + count) for at, count in zip((at_row, at_col), worst.shape[1:], strict=True))
        place = (tile.batch, tile.heads, rows, cols)
        self._worst[place] = self._worst[place].maximum(worst.cpu())
        self._flows[place] |= self._pooled(expected != 0, start).cpu()
        if valid is not None:
            self._seen[place] |= self._pooled(valid, start).cpu()
        return worst.amax((1, 2))

    def _pooled(self, values: Tensor, start: tuple[int, int]) -> Tensor:
        """The maximum over each cell, [h, R, C], of values [h, r, c] that begin at a row and a column."""
        before = [first % size for first, size in zip(start, self.cell, strict=True)]
        sides = [
            (gap, -(gap + length) % size) for gap, length, size in zip(before, values.shape[1:], self.cell, strict=True)
        ]
        if any(map(any, sides)):
            values = pad(values, (*sides[1], *sides[0]))
        heads, rows, cols = values.shape
        cells = values.reshape(heads, rows // self.cell[0], self.cell[0], cols // self.cell[1], self.cell[1])
        return cells.any(4).any(2) if values.dtype == torch.bool else cells.amax((2, 4))

    def bound(self, worst: Tensor, seen: Tensor | None) -> None:
        """Has every tile say what the worst element of its rows may be at most, where no more is known.

        Args:
            worst: ratios [B, H, R].
            seen: the tiles that masks leave, [B, R, C]; None of what has no masks.
        """
        of_rows = pad(worst, (0, -worst.shape[2] % self.cell[0])).unflatten(2, (-1, self.cell[0])).amax(3)
        self._seen = self._seen if seen is None else seen[:, None].expand_as(self._seen)
        self._worst = of_rows[..., None] * self._seen.double()
        self._flows = torch.ones_like(self._flows)

    def seen_of(self, x: Attention) -> Tensor:
        """[R, C] bool: the tiles of a matrix that causal, the window, lengths and packed sequences leave.

        Args:
            x: a problem of one batch.
        """
        seen, (rows, cols) = torch.zeros(self.counts, dtype=torch.bool), self.cell
        for at, line in enumerate(seen):
            keys = x.seen_keys(Tile(0, slice(0, x.n_heads), slice(at * rows, min(at * rows + rows, x.n_query))))
            line[keys.start // cols : -(-keys.stop // cols)] = True
        return seen

    def signs(self) -> Tensor:
        """[B, H, R, C] uint8: the letters of `Head.tiles` as ASCII."""
        level = (self._worst.log2().ceil() + LEVELS.index(WITHIN)).clamp(0, len(LEVELS) - 1)
        lower = torch.tensor(list(LEVELS.encode()), dtype=torch.uint8)[level.long()]
        signs = lower.where(self._flows, lower - 32)  # capitals
        return signs.masked_fill(~self._seen & (self._worst == 0), ord(HIDDEN))
