"""Rows: some query rows of a case, compared as a problem of their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

from msgspec import structs
from torch import Tensor

from ..model.case import Case
from ..model.intermediates import slots
from ..model.layout_run import Element
from ..reference import Attention, Tile
from ..reference.attention import BY_KEY, BY_ROW
from .budget import Recovery
from .compare import attention_of
from .evidence import Measured
from .tally import Finding, RisingErrors

# The inputs with a row for each query row; the second ones only where they are not broadcast along them.
_OF_ROWS, _OF_SCORES = ("q", "do"), ("bias", "mask", "keep")


@dataclass(frozen=True)
class SomeRows(Attention):
    """Some rows of a problem. Each sees the keys that it sees in the whole, and is at the same distance from them."""

    at: tuple[int, ...] = ()
    """Their numbers in the whole, ascending."""
    of: int = 0
    """How many rows the whole has."""

    def __post_init__(self) -> None:
        """Nothing is checked: padded and lazy problems have as many rows as keys, and some of their rows are fewer."""
        if self.cu_seqlens_k is None:
            object.__setattr__(self, "cu_seqlens_k", self.cu_seqlens_q)

    def positions(self, tile: Tile) -> tuple[Tensor, Tensor]:
        _, j = super().positions(tile)
        return j.new_tensor(self.at[tile.rows])[:, None], j

    def seen_keys(self, tile: Tile) -> slice:
        return slice(0, self.n_key)

    def diagonal(self, tile: Tile) -> Tensor:
        diagonal = super().diagonal(tile)
        is_by_corner = self.cu_seqlens_q is None and self.align == "bottom-right"
        return diagonal + self.n_query - self.of if is_by_corner else diagonal


@dataclass(frozen=True)
class Rows:
    """Some query rows of a case.

    What belongs to a row (LSE, P, O, dP, delta, dS, dQ) is made of no other row: it is the same as in the whole.
    """

    at: tuple[int, ...]
    """Ascending."""
    of: int
    """How many the case has."""

    def case(self, case: Case) -> Case:
        """The case with these rows alone, each of which is a tile."""
        return replace(case, seqlen_q=len(self.at), block_m=1)

    def problem(self, case: Case, values: Mapping[str, Tensor]) -> Attention:
        """The reference's problem of these rows, from the values of a run."""
        return attention_of(case, self.inputs(case, values), partial(SomeRows, at=self.at, of=self.of))

    def inputs(self, case: Case, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The inputs of these rows; those that are so already stay."""
        return {name: self._of_input(case, name, value) for name, value in values.items()}

    def _of_input(self, case: Case, name: str, value: Tensor) -> Tensor:
        is_by_row = name in _OF_ROWS or (name in _OF_SCORES and case.family == "softmax")
        return value[..., list(self.at), :] if is_by_row and value.shape[-2] == self.of else value

    def results(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Of results by row those of these rows; of sums over rows those by key, to which the others add nothing."""
        rows = {name: value[:, :, list(self.at)] for name, value in values.items() if name in BY_ROW}
        return {name: rows.get(name, value) for name, value in values.items() if name in (*BY_ROW, *BY_KEY)}

    def finding(self, case: Case, found: Finding) -> Finding:
        """What was found of these rows, as rows of the whole."""
        if slots(found.axes)[2] != "m":
            return found
        wrong = found.wrong_rows.new_zeros((*found.wrong_rows.shape[:2], self.of))
        wrong[:, :, list(self.at)] = found.wrong_rows
        own, every = (
            RisingErrors(tuple(self.element(case, one) for one in rising.elements))
            for rising in (found.rising_own, found.rising)
        )
        return replace(found, wrong_rows=wrong, rising_own=own, rising=every, shown=self.at)

    def element(self, case: Case, found: Element) -> Element:
        """An element of one of these rows, as one of the whole."""
        if found.row is None or found.intermediate not in BY_ROW:
            return found
        row, window = self.at[found.row], found.window
        window = window and structs.replace(window, rows=tuple(self.at[one] for one in window.rows))
        return structs.replace(found, row=row, tile=(row // case.block_m, found.tile[1]), window=window)


def rows_of(case: Case, recovery: Recovery | None) -> Rows | None:
    """The rows of a case that were recovered; None for all."""
    return Rows(recovery.rows, case.seqlen_q) if recovery is not None and recovery.rows is not None else None


def problem_of(case: Case, values: Mapping[str, Tensor], rows: Rows | None) -> Attention:
    """The reference's problem for the values of a run, of some rows or of all."""
    return attention_of(case, values) if rows is None else rows.problem(case, values)


def in_whole(case: Case, measured: Measured) -> Measured:
    """The same with its findings as rows of the whole case."""
    rows, comparison = rows_of(case, measured.comparison.recovery), measured.comparison
    if rows is None:
        return measured
    findings = {name: rows.finding(case, one) for name, one in comparison.findings.items()}
    first = measured.first and rows.element(case, measured.first)
    return replace(measured, comparison=replace(comparison, findings=findings), first=first)
