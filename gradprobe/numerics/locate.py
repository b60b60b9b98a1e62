"""Comparison -> the first mismatch: where it is, whether a mask covers it, and the numbers around it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..model import report as model
from ..model.case import Case
from ..model.intermediates import slots
from ..model.number import Number
from ..model.spans import in_words, spans
from .tally import MISMATCH, Place

if TYPE_CHECKING:
    from torch import Tensor

    from ..reference import Attention
    from ..runtime.trace import Trace
    from .compare import Comparison

# Which corner the diagonal ends in where M != N, and how another kernel shows.
_ALIGNED = {
    "bottom-right": "causal is aligned to the bottom right, j <= i + N - M; a top-left kernel differs in every row: "
    "for one, --align top-left",
    "top-left": "causal is aligned to the top left, j <= i; a bottom-right kernel differs in every row",
}


@dataclass(frozen=True)
class Window:
    """A few rows and columns around a place, actual beside expected."""

    rows: tuple[int, ...]
    cols: tuple[int, ...]
    actual: tuple[tuple[float, ...], ...]
    expected: tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Location:
    """The first mismatch."""

    intermediate: str
    place: Place
    tile: tuple[int | None, int | None]
    """(m, n) of the BLOCK_M x BLOCK_N tile; None along an axis that the intermediate does not have."""
    masked: bool | None
    """Whether a mask covers the entry; None where that has no meaning."""
    window: Window


def locate(case: Case, x: Attention, trace: Trace, comparison: Comparison) -> Location | None:
    """The first mismatch in dataflow order, then batch, head, row and column; None where everything matches."""
    for name, finding in comparison.findings.items():
        if finding.status == MISMATCH and finding.first is not None:
            return _location(case, x, trace, comparison, name, finding.first)
    return None


def locate_at(
    case: Case,
    x: Attention,
    trace: Trace,
    comparison: Comparison,
    name: str,
    at: tuple[int, int, int, int],
    budget: float,
) -> Location:
    """Any element, by its batch, head, row and column (0 where the intermediate has no such axis)."""
    axes = comparison.findings[name].axes
    batch, head, row, col = (place if letter else None for place, letter in zip(at, slots(axes), strict=True))
    place = Place(batch, head or 0, row, col, 0.0, 0.0, budget)
    window = _window(x, trace, comparison, name, place)
    r, c = window.rows.index(at[2]), window.cols.index(at[3])
    place = replace(place, actual=window.actual[r][c], expected=window.expected[r][c])
    return Location(name, place, tile_of(case, axes, place.row, place.col), _masked(x, axes, place), window)


def _location(case: Case, x: Attention, trace: Trace, comparison: Comparison, name: str, place: Place) -> Location:
    axes = comparison.findings[name].axes
    tile, masked = tile_of(case, axes, place.row, place.col), _masked(x, axes, place)
    return Location(name, place, tile, masked, _window(x, trace, comparison, name, place))


def tile_of(case: Case, axes: str, row: int | None, col: int | None) -> tuple[int | None, int | None]:
    """Which tile of the score matrix an element belongs to."""
    blocks = {"m": case.block_m, "n": case.block_n}
    found: dict[str, int] = {
        letter: at // blocks[letter]
        for letter, at in zip(slots(axes)[2:], (row, col), strict=True)
        if letter in blocks and at is not None
    }
    return found.get("m"), found.get("n")


def _masked(x: Attention, axes: str, place: Place) -> bool | None:
    if axes != "bhmn" or place.row is None or place.col is None:
        return None
    heads, rows = slice(place.head, place.head + 1), slice(place.row, place.row + 1)
    from ..reference import Tile

    return not bool(x.valid(Tile(place.batch or 0, heads, rows))[0, 0, place.col])


def _window(x: Attention, trace: Trace, comparison: Comparison, name: str, place: Place) -> Window:
    actual = _matrix(trace.values[name], place)
    rows, cols = _around(place.row or 0, actual.shape[0], 2), _around(place.col or 0, actual.shape[1], 5)
    from .compare import BY_TILE

    if name in BY_TILE:
        assert place.row is not None
        expected = expected_rows(x, comparison, name, place, rows)[:, list(cols)]
    else:
        expected = _matrix(comparison.expected[name], place)[list(rows)][:, list(cols)]
    shown = actual[list(rows)][:, list(cols)].double()
    return Window(rows, cols, _numbers(shown), _numbers(expected))


def _matrix(tensor: Tensor, place: Place) -> Tensor:
    """[R, C] of the place's batch and head, with 1 for an axis that is not there."""
    if tensor.dim() == 4:
        return tensor[place.batch or 0, place.head]
    per_head = tensor[place.batch, place.head] if place.batch is not None else tensor[place.head]
    return per_head.reshape(-1, 1)


def expected_rows(x: Attention, comparison: Comparison, name: str, place: Place, rows: Sequence[int]) -> Tensor:
    """[rows, C] of what a target was compared with, for neighbouring rows of one head."""
    from ..reference import Tile

    tile = Tile(place.batch or 0, slice(place.head, place.head + 1), slice(rows[0], rows[-1] + 1))
    return comparison.values(x, tile)[name].reshape(len(rows), -1)


def _around(at: int, size: int, width: int) -> tuple[int, ...]:
    first = max(0, min(at - width // 2, size - width))
    return tuple(range(first, min(first + width, size)))


def _numbers(tensor: Tensor) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(row) for row in tensor.tolist())


def element_of(location: Location) -> model.Element:
    """A place with the numbers around it, as a report holds it."""
    place, window = location.place, location.window
    return model.Element(
        intermediate=location.intermediate,
        batch=place.batch, head=place.head, row=place.row, col=place.col,
        tile=location.tile,
        actual=Number(place.actual), expected=Number(place.expected), budget=Number(place.budget),
        masked=location.masked,
        window=model.Window(window.rows, window.cols, _typed(window.actual), _typed(window.expected)),
    )  # fmt: skip


def _typed(rows: Sequence[Sequence[float]]) -> tuple[tuple[Number, ...], ...]:
    return tuple(tuple(map(Number, row)) for row in rows)


def zeros_by_design(case: Case) -> list[str]:
    """Sentences about what is 0 by mathematics, which looks like a bug and is none."""
    notes = []
    first_at_zero = case.seqlen_q == case.seqlen_k or case.align == "top-left"
    if case.causal and first_at_zero and case.window is None and not case.sinks:
        notes.append("row 0 of dS and dQ is 0 by design: it sees one key, so P = 1")
    at_kink = spans([h for h, tau in enumerate(case.tau or ()) if tau <= -1.0])
    if at_kink:
        heads = f"head {in_words(at_kink)}" if len(at_kink) <= 4 else "many heads"
        notes.append(f"row 0 of O is 0 by design where tau <= -1 cancels P = 1: {heads}")
    if case.causal and case.seqlen_q != case.seqlen_k:
        notes.append(_ALIGNED[case.align])
    if case.causal and case.seqlen_q > case.seqlen_k and case.align == "bottom-right":
        dead = case.seqlen_q - case.seqlen_k
        notes.append(f"rows 0 to {dead - 1} see no key (M > N): their P, O and gradients are 0 by design")
    if case.seqlens is not None and min(case.seqlens) < case.seqlen_q:
        notes.append("rows at or beyond a batch's length are 0 by design, in O and in every gradient")
    return notes
