"""Finding: the wrong elements of one intermediate, counted tile by tile, per head and row."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

import torch
from msgspec import structs
from torch import Tensor

from ..model.case import Case
from ..model.intermediates import slots
from ..model.layout_run import INHERITED, MATCH, MISMATCH, Element
from ..model.number import Number, spans
from ..reference import Tile
from ..reference.attention import MATRICES

ElementIndex = tuple[int, int, int, int]
"""Batch, head, row and column of an element; 0 along an axis that its intermediate does not have."""


class Judgement(NamedTuple):
    """Values that came, beside those expected and the errors allowed, and whether each is right; all of one shape."""

    actual: Tensor
    expected: Tensor
    bound: Tensor
    right: Tensor

    @property
    def ratio(self) -> Tensor:
        """Errors as multiples of the budget: infinite for a NaN, 0 for what is right by another rule."""
        ratio = (self.actual - self.expected).abs() / self.bound
        ratio = ratio.nan_to_num(math.inf, posinf=math.inf)
        return ratio.masked_fill(self.right & ~(ratio <= 1), 0.0)

    def reshape(self, *shape: int) -> Judgement:
        return Judgement(*(part.reshape(shape) for part in self))


# An element that is off by less may be rounded; one that is off by the worst over this is as wrong by order.
_OF_ONE_ORDER = 10.0


def least_telling(finite: float, worst: float) -> float:
    """The least ratio that is of the order of the worst of all, or of the finite ones where those are far off."""
    return (finite if finite >= _OF_ONE_ORDER else worst) / _OF_ONE_ORDER


@dataclass(frozen=True)
class RisingErrors:
    """The wrong elements of an intermediate that are further off than all before them, by batch, head, row, column."""

    elements: tuple[Element, ...] = ()

    @property
    def telling(self) -> Element | None:
        """The first element that is far off, or wrong by the order of the worst: of others rounding may be why."""
        ratios = [element.ratio for element in self.elements]
        finite = max(filter(math.isfinite, ratios), default=0.0)
        least = least_telling(finite, max(ratios, default=0.0))
        telling = (one for one in self.elements if one.ratio >= least or _is_far_off(one))
        return next(telling, None)

    def with_more(self, elements: Iterable[Element]) -> RisingErrors:
        found, place = list[Element](), attrgetter("batch", "head", "row", "col")
        for element in sorted([*self.elements, *elements], key=place):
            if not found or element.ratio > found[-1].ratio:
                found.append(element)
        return RisingErrors(tuple(found))


def _is_far_off(element: Element) -> bool:
    """Whether it errs by more than rounding does, and by a share of what it should be that a reader sees."""
    if element.actual is None or element.expected is None:
        return False
    error = abs(element.actual - element.expected)
    return element.ratio >= _OF_ONE_ORDER and error * _OF_ONE_ORDER >= abs(element.expected)


def element_at(
    case: Case, name: str, at: ElementIndex, actual: float, expected: float, budget: float
) -> Element:
    """An element of an intermediate, with the tile of the score matrix that it belongs to."""
    letters = slots(case.axes(name))
    along = dict(zip(letters, at, strict=True))
    batch, head, row, col = (at[slot] if letters[slot] else None for slot in range(4))
    m, n = (
        along[letter] // block if letter in along else None
        for letter, block in (("m", case.block_m), ("n", case.block_n))
    )
    return Element(
        intermediate=name, batch=batch, head=head or 0, row=row, col=col, tile=(m, n),
        actual=Number(actual), expected=Number(expected), budget=Number(budget),
    )  # fmt: skip


@dataclass
class Finding:
    """One intermediate, judged. Tensors are on the CPU, [B, H] or [B, H, R]; B is 1 where there is no batch axis."""

    case: Case
    name: str
    axes: str
    shape: tuple[int, ...]
    """[B, H, R, C] with 1 for what is not there."""
    ratio: Tensor
    """[B, H] the worst error as a multiple of the budget."""
    wrong: Tensor
    """[B, H] how many elements are wrong against the reference."""
    own: Tensor
    """[B, H] how many of those the target's own parents do not explain."""
    wrong_rows: Tensor
    """[B, H, R] bool."""
    wrong_columns: Tensor
    """[B, H, C] bool."""
    largest: Tensor
    """[B, H] the largest magnitude expected; 0 of a head that passed the sieve."""
    rising_own: RisingErrors = RisingErrors()
    """Of the wrong elements that are not inherited."""
    rising: RisingErrors = RisingErrors()
    """Of all wrong elements."""
    total: int = 0
    non_finite: int = 0
    """Wrong elements that are NaN or infinite."""
    max_abs_err: float = 0.0
    """Over the finite elements."""
    squares: float = 0.0
    """The sum of the squares of all ratios."""
    counted: int = 0
    """Elements that are allowed any error, or err by any."""

    @staticmethod
    def empty(case: Case, name: str, shape: tuple[int, ...]) -> Finding:
        """What is known of an intermediate of which no tile was added yet."""
        axes = case.axes(name)
        shape = tuple(shape) if axes[0] in "b1" else (1, *shape)
        shape += (1,) * (4 - len(shape))
        zeros, heads = torch.zeros, shape[:2]
        ratio, largest = (zeros(heads, dtype=torch.double) for _ in range(2))
        wrong, own = (zeros(heads, dtype=torch.long) for _ in range(2))
        rows, columns = (zeros((*heads, shape[axis]), dtype=torch.bool) for axis in (2, 3))
        heads_of = (ratio, wrong, own, rows, columns, largest)
        return Finding(case, name, axes, shape, *heads_of)

    @property
    def rms_ratio(self) -> float:
        """The root mean square of ratios over what is allowed any error; infinite where one is NaN."""
        return math.sqrt(self.squares / max(self.counted, 1))

    @property
    def first(self) -> Element | None:
        """The first wrong element that is not inherited, of those that are wrong by the order of the worst."""
        return self.rising_own.telling

    @property
    def first_wrong(self) -> Element | None:
        """The same of all wrong elements."""
        return self.rising.telling

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

    def add_whole(self, judged: Judgement, inherited: Tensor | None) -> None:
        """Adds a whole intermediate, in its own axes."""
        n_batch, n_heads, n_rows, _ = self.shape
        whole = judged.reshape(*self.shape)
        explained = None if inherited is None else inherited.reshape(self.shape)
        for b in range(n_batch):
            tile = Tile(b, slice(0, n_heads), slice(0, n_rows))
            of_b = Judgement(*(part[b] for part in whole))
            self.add(tile, of_b, None if explained is None else explained[b])

    def add(self, tile: Tile, judged: Judgement, inherited: Tensor | None) -> None:
        """Adds one tile, with values [h, r, ...].

        Args:
            inherited: whether the target's own parents explain each value.
        """
        judged, place = judged.reshape(*judged.actual.shape[:2], -1), (tile.batch, tile.heads)
        error, ratio, wrong = (
            (judged.actual - judged.expected).abs(),
            judged.ratio,
            ~judged.right,
        )
        first = tile.keys.indices(self.shape[-1])[0] if self.name in MATRICES else 0
        # Keys that the tile leaves out have 0, as they should.
        self.total += error.shape[0] * error.shape[1] * self.shape[-1]
        self.max_abs_err = max(self.max_abs_err, float(error.nan_to_num(0.0, 0.0, 0.0).max()))
        largest = judged.expected.abs().nan_to_num(0.0, 0.0, 0.0).amax((1, 2)).cpu()
        self.largest[place] = self.largest[place].maximum(largest)
        self.squares += float(ratio.square().sum())
        self.counted += int(((judged.bound > 0) | (ratio > 0)).sum())
        self.ratio[place] = self.ratio[place].maximum(ratio.amax((1, 2)).cpu())
        if not bool(wrong.any()):
            return
        own = wrong if inherited is None else wrong & ~inherited.reshape(wrong.shape)
        self.wrong[place] += wrong.sum((1, 2)).cpu()
        self.own[place] += own.sum((1, 2)).cpu()
        self.wrong_rows[tile.batch, tile.heads, tile.rows] |= wrong.any(-1).cpu()
        self.wrong_columns[place][..., first : first + wrong.shape[-1]] |= wrong.any(1).cpu()
        self.non_finite += int((wrong & ~judged.actual.isfinite()).sum())
        start = (tile.heads.start, tile.rows.start, first)
        of = (tile.batch, start, ratio, judged)
        self.rising_own = self.rising_own.with_more(self._risen(own, *of))
        self.rising = self.rising.with_more(self._risen(wrong, *of))

    def _risen(
        self, mask: Tensor, batch: int, start: tuple[int, int, int], ratio: Tensor, judged: Judgement
    ) -> Iterator[Element]:  # fmt: skip
        """The elements of a mask that are further off than all before them, by head, row and column."""
        masked = ratio.masked_fill(~mask, -1.0).flatten()
        before = torch.cat([masked.new_full((1,), -1.0), masked.cummax(0).values[:-1]])
        _, rows, cols = ratio.shape
        for number in (masked > before).nonzero().flatten().tolist():
            h, r, c = number // (rows * cols), number // cols % rows, number % cols
            at = (batch, start[0] + h, start[1] + r, start[2] + c)
            numbers = (float(part[h, r, c]) for part in judged[:3])
            yield element_at(self.case, self.name, at, *numbers)

    def add_heads(self, part: Finding, batch: int, heads: slice) -> None:
        """Adds what was found of some heads of a batch alone, in place of what was known of them."""
        place = slice(batch, batch + 1), heads
        for name in ("ratio", "wrong", "own", "wrong_rows", "wrong_columns", "largest"):
            getattr(self, name)[place] = getattr(part, name)
        self.total += part.total
        self.non_finite += part.non_finite
        self.max_abs_err = max(self.max_abs_err, part.max_abs_err)
        self.squares += part.squares
        self.counted += part.counted
        for name in ("rising_own", "rising"):
            elements = []
            for element in getattr(part, name).elements:
                head = heads.start + (element.head or 0)
                elements.append(structs.replace(element, batch=batch, head=head))
            setattr(self, name, getattr(self, name).with_more(elements))


def _status(wrong: int, own: int) -> str:
    return MISMATCH if own else INHERITED if wrong else MATCH


def ranges_of(marks: Tensor) -> tuple[tuple[int, int], ...]:
    """The rows or columns that are marked [n] as inclusive ranges."""
    return tuple(spans(marks.nonzero().flatten().tolist()))


def tile_of(case: Case, axes: str, cols: int) -> tuple[int, int]:
    """Score tiles for matrices; whole rows in BLOCK_M or BLOCK_N steps for the others, eight columns to a cell."""
    _, _, row, col = slots(axes)
    wide = case.block_n if col == "n" else min(cols, 8)
    return case.block_m if row == "m" else case.block_n, wide
