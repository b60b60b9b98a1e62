"""Tally: counts the wrong elements of one intermediate, tile by tile. Finding: the counts, per head and row."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ..model.case import Case
from ..model.intermediates import slots
from ..model.number import Number, spans
from ..model.run import INHERITED, MATCH, MISMATCH, Element
from ..reference import Tile
from ..reference.attention import MATRICES
from .grid import Grid

ElementIndex = tuple[int, int, int, int]
"""Batch, head, row and column of an element; 0 along an axis that its intermediate does not have."""


class Judged(NamedTuple):
    """Values that came, beside those expected and the errors allowed, and whether each is right; all of one shape."""

    actual: Tensor
    expected: Tensor
    bound: Tensor
    right: Tensor

    @property
    def ratio(self) -> Tensor:
        """Errors as multiples of the budget: infinite for a NaN, 0 for what is right by another rule."""
        ratio = ((self.actual - self.expected).abs() / self.bound).nan_to_num(math.inf, posinf=math.inf)
        return ratio.masked_fill(self.right & ~(ratio <= 1), 0.0)

    def reshape(self, *shape: int) -> Judged:
        return Judged(*(part.reshape(shape) for part in self))


@dataclass(frozen=True)
class Finding:
    """One intermediate, judged. Tensors are on the CPU, [B, H] or [B, H, R]; B is 1 where there is no batch axis."""

    name: str
    axes: str
    total: int
    non_finite: int
    """Wrong elements that are NaN or infinite."""
    max_abs_err: float
    """Over the finite elements."""
    ratio: Tensor
    """[B, H] the worst error as a multiple of the budget."""
    rms_ratio: float
    """The root mean square of the same over the elements that are allowed any error; infinite where one is NaN."""
    wrong: Tensor
    """[B, H] how many elements are wrong against the reference."""
    own: Tensor
    """[B, H] how many of those the target's own parents do not explain."""
    wrong_rows: Tensor
    """[B, H, R] bool."""
    first: Element | None
    """The first wrong element that is not inherited, in the order batch, head, row, column."""
    first_wrong: Element | None
    """The first wrong element of any kind."""
    shown: tuple[int, ...] = ()
    """The rows that were recovered, where not all were."""
    counted: int = 0
    """Elements that are allowed any error, or err by any."""
    signs: Tensor | None = None
    """[B, H, R, C] uint8: the maps of all heads, as `Grid.signs`; None where none were made."""
    cell: tuple[int, int] = (0, 0)
    """Rows and columns of one of their tiles."""
    bounded: bool = False
    """Whether the maps of right heads say what the worst element of all rows of a tile may be at most."""

    @property
    def mismatched(self) -> int:
        return int(self.wrong.sum())

    @property
    def max_ratio(self) -> float:
        return float(self.ratio.max())

    @property
    def status(self) -> str:
        return _status(self.mismatched, int(self.own.sum()))

    def head_status(self, batch: int, head: int) -> str:
        return _status(int(self.wrong[batch, head]), int(self.own[batch, head]))

    def row_ranges(self, batch: int, head: int) -> list[tuple[int, int]]:
        """The wrong rows of a head as inclusive ranges."""
        return spans(self.wrong_rows[batch, head].nonzero().flatten().tolist())


def _status(wrong: int, own: int) -> str:
    return MISMATCH if own else INHERITED if wrong else MATCH


def element_at(case: Case, name: str, at: ElementIndex, actual: float, expected: float, budget: float) -> Element:
    """An element of an intermediate, with the tile of the score matrix that it belongs to."""
    letters = slots(case.axes(name))
    batch, head, row, col = (place if letter else None for place, letter in zip(at, letters, strict=True))
    along = dict(zip(letters[2:], at[2:], strict=True))
    blocks = {"m": case.block_m, "n": case.block_n}
    m, n = (along[letter] // block if letter in along else None for letter, block in blocks.items())
    return Element(
        intermediate=name,
        batch=batch,
        head=head or 0,
        row=row,
        col=col,
        tile=(m, n),
        actual=Number(actual),
        expected=Number(expected),
        budget=Number(budget),
    )


class Tally:
    """Adds up the verdicts on one intermediate."""

    def __init__(self, case: Case, name: str, shape: tuple[int, ...]) -> None:
        self.name, self.case = name, case
        self.axes = case.axes(name)
        shape = tuple(shape) if self.axes[0] in "b1" else (1, *shape)
        self.shape = shape + (1,) * (4 - len(shape))
        """[B, H, R, C] with 1 for what is not there."""
        self.total, self.non_finite, self.max_abs_err = 0, 0, 0.0
        self.ratio = torch.zeros(self.shape[:2], dtype=torch.double)
        self.grid = Grid(case, name, self.shape)
        self.squares, self.counted = 0.0, 0
        self.wrong, self.own = (torch.zeros(self.shape[:2], dtype=torch.long) for _ in range(2))
        self.wrong_rows = torch.zeros(self.shape[:3], dtype=torch.bool)
        self.first: tuple[ElementIndex, Element] | None = None
        self.first_wrong: tuple[ElementIndex, Element] | None = None

    def add_whole(self, judged: Judged, inherited: Tensor | None) -> None:
        """Adds a whole intermediate, in its own axes."""
        n_batch, n_heads, n_rows, _ = self.shape
        whole = judged.reshape(*self.shape)
        explained = None if inherited is None else inherited.reshape(self.shape)
        for b in range(n_batch):
            tile, of_b = Tile(b, slice(0, n_heads), slice(0, n_rows)), Judged(*(part[b] for part in whole))
            self.add(tile, of_b, None if explained is None else explained[b])

    def add(self, tile: Tile, judged: Judged, inherited: Tensor | None, valid: Tensor | None = None) -> None:
        """Adds one tile, with values [h, r, ...].

        Args:
            inherited: whether the target's own parents explain each value.
            valid: of a matrix, what its masks leave, [h, r, c].
        """
        judged = judged.reshape(*judged.actual.shape[:2], -1)
        error, ratio, wrong = (judged.actual - judged.expected).abs(), judged.ratio, ~judged.right
        # Keys that the tile leaves out have 0, as they should.
        self.total += error.shape[0] * error.shape[1] * self.shape[-1]
        self.max_abs_err = max(self.max_abs_err, float(error.where(error.isfinite(), error.new_zeros(())).max()))
        self.squares += float(ratio.square().sum())
        self.counted += int(((judged.bound > 0) | (ratio > 0)).sum())
        place = (tile.batch, tile.heads)
        worst = self.grid.add(tile, self._first_key(tile), ratio, judged.expected, valid)
        self.ratio[place] = self.ratio[place].maximum(worst.cpu())
        if bool(wrong.any()):
            explained = wrong.new_zeros(()) if inherited is None else inherited.reshape(wrong.shape)
            self._add_wrong(tile, wrong, wrong & ~explained, judged)

    def _add_wrong(self, tile: Tile, wrong: Tensor, own: Tensor, judged: Judged) -> None:
        place = (tile.batch, tile.heads)
        self.wrong[place] += wrong.sum((1, 2)).cpu()
        self.own[place] += own.sum((1, 2)).cpu()
        self.wrong_rows[tile.batch, tile.heads, tile.rows] |= wrong.any(-1).cpu()
        self.non_finite += int((wrong & ~judged.actual.isfinite()).sum())
        self.first = self._earlier(self.first, tile, own, judged)
        self.first_wrong = self._earlier(self.first_wrong, tile, wrong, judged)

    def _earlier(
        self, known: tuple[ElementIndex, Element] | None, tile: Tile, mask: Tensor, judged: Judged
    ) -> tuple[ElementIndex, Element] | None:
        """The earlier of the element known so far and the first of a mask, in the order batch, head, row, column."""
        found = mask.flatten().nonzero()
        if not len(found):
            return known
        h, rest = divmod(int(found[0]), mask.shape[1] * mask.shape[2])
        r, c = divmod(rest, mask.shape[2])
        at = (tile.batch, tile.heads.start + h, tile.rows.start + r, self._first_key(tile) + c)
        if known is not None and known[0] < at:
            return known
        return at, element_at(self.case, self.name, at, *(float(part[h, r, c]) for part in judged[:3]))

    def _first_key(self, tile: Tile) -> int:
        return tile.keys.indices(self.shape[-1])[0] if self.name in MATRICES else 0

    def finding(self) -> Finding:
        """What the tiles came to."""
        return Finding(
            self.name,
            self.axes,
            self.total,
            self.non_finite,
            self.max_abs_err,
            self.ratio,
            math.sqrt(self.squares / max(self.counted, 1)),
            self.wrong,
            self.own,
            self.wrong_rows,
            self.first[1] if self.first else None,
            self.first_wrong[1] if self.first_wrong else None,
            counted=self.counted,
            signs=self.grid.signs(),
            cell=self.grid.cell,
        )
