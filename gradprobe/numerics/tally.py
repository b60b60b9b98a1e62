"""Tally: counts the wrong elements of one intermediate, tile by tile. Finding: the counts, per head and row."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..model.case import Case
from ..model.intermediates import slots
from ..model.spans import spans

if TYPE_CHECKING:
    from torch import Tensor

    from ..reference import Tile

MATCH, INHERITED, MISMATCH = "match", "inherited", "mismatch"


@dataclass(frozen=True)
class Place:
    """One element, with the values found and expected."""

    batch: int | None
    """None where the intermediate has no such axis."""
    head: int
    row: int | None
    """The first axis after the head: a query row, a key (dK, dV) or a distance (dBias)."""
    col: int | None
    actual: float
    expected: float
    budget: float

    @property
    def ratio(self) -> float:
        """The error as a multiple of the budget."""
        error = abs(self.actual - self.expected)
        return error / self.budget if self.budget and error == error else float("inf")


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
    first: Place | None
    """The first wrong element that is not inherited, in the order batch, head, row, column."""
    first_wrong: Place | None
    """The first wrong element of any kind."""

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


class Tally:
    """Adds up the verdicts on one intermediate."""

    def __init__(self, case: Case, name: str, shape: tuple[int, ...]) -> None:
        self.name, self.case = name, case
        self.axes = case.axes(name)
        shape = tuple(shape) if self.axes[0] in "b1" else (1, *shape)
        self.shape = shape + (1,) * (4 - len(shape))
        """[B, H, R, C] with 1 for what is not there."""
        self.total, self.non_finite, self.max_abs_err = 0, 0, 0.0
        self.ratio = self._zeros(2).double()
        self.squares, self.counted = 0.0, 0
        self.wrong, self.own = self._zeros(2), self._zeros(2)
        self.wrong_rows = self._zeros(3).bool()
        self.first: tuple[tuple[int, ...], Place] | None = None
        self.first_wrong: tuple[tuple[int, ...], Place] | None = None

    def _zeros(self, axes: int) -> Tensor:
        import torch

        return torch.zeros(self.shape[:axes], dtype=torch.long)

    def add_whole(
        self, actual: Tensor, expected: Tensor, bound: Tensor, right: Tensor, inherited: Tensor | None
    ) -> None:
        """Adds a whole intermediate, in its own axes."""
        from ..reference import Tile

        n_batch, n_heads, n_rows, _ = self.shape
        parts = [tensor.reshape(self.shape) for tensor in (actual, expected, bound, right)]
        explained = None if inherited is None else inherited.reshape(self.shape)
        for b in range(n_batch):
            tile = Tile(b, slice(0, n_heads), slice(0, n_rows))
            of_b = (part[b] for part in parts)
            self.add(tile, next(of_b), next(of_b), next(of_b), next(of_b), None if explained is None else explained[b])

    def add(
        self, tile: Tile, actual: Tensor, expected: Tensor, bound: Tensor, right: Tensor, inherited: Tensor | None
    ) -> None:
        """Adds one tile: values [h, r, ...], whether each is right, and whether the target's own parents explain it."""
        shape = (*actual.shape[:2], -1)
        actual, expected, bound, right = (part.reshape(shape) for part in (actual, expected, bound, right))
        error = (actual - expected).abs()
        self.total += actual.numel()
        self.max_abs_err = max(self.max_abs_err, float(error.where(error.isfinite(), error.new_zeros(())).max()))
        ratio = self._ratio(error, bound, right)
        self.squares += float(ratio.square().sum())
        self.counted += int(((bound > 0) | (ratio > 0)).sum())
        place = (tile.batch, tile.heads)
        self.ratio[place] = self.ratio[place].maximum(ratio.amax((1, 2)).cpu())
        wrong = ~right
        if bool(wrong.any()):
            explained = wrong.new_zeros(()) if inherited is None else inherited.reshape(shape)
            self._add_wrong(tile, wrong, wrong & ~explained, (actual, expected, bound))

    @staticmethod
    def _ratio(error: Tensor, bound: Tensor, right: Tensor) -> Tensor:
        """Errors as multiples of the budget: infinite for a NaN, 0 for what is right by another rule."""
        ratio = (error / bound).nan_to_num(float("inf"), posinf=float("inf"))
        return ratio.masked_fill(right & ~(ratio <= 1), 0.0)

    def _add_wrong(self, tile: Tile, wrong: Tensor, own: Tensor, values: tuple[Tensor, Tensor, Tensor]) -> None:
        place = (tile.batch, tile.heads)
        self.wrong[place] += wrong.sum((1, 2)).cpu()
        self.own[place] += own.sum((1, 2)).cpu()
        self.wrong_rows[tile.batch, tile.heads, tile.rows] |= wrong.any(-1).cpu()
        self.non_finite += int((wrong & ~values[0].isfinite()).sum())
        self.first = self._earlier(self.first, tile, own, values)
        self.first_wrong = self._earlier(self.first_wrong, tile, wrong, values)

    def _earlier(
        self,
        known: tuple[tuple[int, ...], Place] | None,
        tile: Tile,
        mask: Tensor,
        values: tuple[Tensor, Tensor, Tensor],
    ) -> tuple[tuple[int, ...], Place] | None:
        """The earlier of the place known so far and the first of a mask, in the order batch, head, row, column."""
        found = mask.flatten().nonzero()
        if not len(found):
            return known
        h, rest = divmod(int(found[0]), mask.shape[1] * mask.shape[2])
        r, c = divmod(rest, mask.shape[2])
        at = (tile.batch, tile.heads.start + h, tile.rows.start + r, c)
        if known is not None and known[0] < at:
            return known
        return at, self._place(at, *(float(part[h, r, c]) for part in values))

    def _place(self, at: tuple[int, ...], actual: float, expected: float, budget: float) -> Place:
        batch, head, row, col = (place if letter else None for place, letter in zip(at, slots(self.axes), strict=True))
        return Place(batch, head or 0, row, col, actual, expected, budget)

    def finding(self) -> Finding:
        """What the tiles came to."""
        first, first_wrong = (known[1] if known else None for known in (self.first, self.first_wrong))
        rms = math.sqrt(self.squares / max(self.counted, 1))
        return Finding(
            self.name,
            self.axes,
            self.total,
            self.non_finite,
            self.max_abs_err,
            self.ratio,
            rms,
            self.wrong,
            self.own,
            self.wrong_rows,
            first,
            first_wrong,
        )
