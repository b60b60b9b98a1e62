"""Candidates: the edits of a file that may undo a fault of some lines, the likeliest first, each once."""

from __future__ import annotations

import ast
import heapq
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import count, groupby, islice

from ...model.intermediates import in_kernels, plain
from ...model.mechanisms import gathered
from ..kernel_file import KernelFile
from ..operators.addresses import stride_of
from ..text import Edit, edited
from ..triton_source import bound_in
from .alike import belongs, core, same_when_contiguous
from .parameter import owner_meant, stride_passed, strides_of_what_is_passed
from .repairs import Repairs
from .rules import undone
from .siblings import of_siblings
from .spots import GridRole, Spot, spots_of
from .unread import unread
from .unrun import as_parsed

# How much a step away from the line at fault counts beside the ranks of the rules; what is taken off for the piece of
# the line that is known to be wrong, for the words that the right text is likely to have, and for the same edit of the
# same statement in all kernels.
_STEP, _PIECE, _WANTED, _TOGETHER = 1.0, 0.7, 0.8, 0.5
_SIGNS = ("+", "-", "+=", "-=")
# What is taken off where the statement makes the intermediate that is wrong.
_OF = 1.0
# What is taken off for a name that the kernel never reads as it is.
_UNREAD = 0.7
# What a stride costs of a tensor that nothing else in the statement is of: where strides agree it matches all the same.
_FOREIGN = 1.5
# What a stride costs in the place of one that is the same number there.
_SAME = 8.0
# What a line costs that sums what another one leaves out: a loop, or its range.
_SUMMED = 1.0
# What is seldom taken off by all of these together: what is that much likelier may come a little late.
SOONEST = 1.5
# Statements that are looked at around one line.
_SPOTS = 60
Edits = tuple[Edit, ...]


@dataclass(frozen=True)
class Fault:
    """A line at fault."""

    line: int
    column: int | None = None
    """Of the wrong piece in the stripped line; None where that is not known."""
    length: int = 0
    grid: GridRole = GridRole.FAR
    """Whether it may be how many programs there are."""
    of: str = ""
    """The intermediate that is wrong, as the table of intermediates has it; "" where that is not told."""
    is_turned: bool = False
    """Whether something is known to have the other sign there."""
    is_summed: bool = False
    """Whether it sums what another line leaves out."""


@dataclass(frozen=True)
class Candidate:
    """One edit that may be tried."""

    file: KernelFile = field(repr=False)
    edits: Edits
    cost: float
    """How unlikely it is."""

    @property
    def text(self) -> str:
        """The file's text with it."""
        return edited(self.file.text, self.edits)

    def with_more(self, edits: Edits) -> Candidate | None:
        """Both edits; None where they overlap."""
        ordered = sorted({*self.edits, *edits}, key=lambda edit: (edit.start, edit.end))
        overlap = any(one.end > two.start for one, two in zip(ordered, ordered[1:], strict=False))
        return None if overlap else Candidate(self.file, tuple(ordered), self.cost)


def candidates_of(
    file: KernelFile, faults: Sequence[Fault], wanted: Iterable[str] = (), *, contiguous: bool = False
) -> Iterator[Candidate]:
    """The candidates for a fault of these lines of a file, the likeliest first; none that can be seen to fail.

    Where some lines say the same in several kernels, the same edit in all of them comes before each alone.

    Args:
        wanted: words that the right text is likely to have: a tensor and its axis, of a stride.
        contiguous: whether it goes wrong where all tensors are contiguous.
    """
    words = [word.lower() for word in wanted]
    seen: set[Edits] = set()
    known: set[str] = set()
    for cost, edits in _by_cost(_repairs(file), faults, words, contiguous=contiguous):
        parsed = None if edits in seen else as_parsed(file, edits)
        seen.add(edits)
        if parsed is not None and parsed not in known:
            known.add(parsed)
            yield Candidate(file, edits, cost)


_repairs = lru_cache(maxsize=16)(Repairs)  # several diagnoses are of one file


def _by_cost(
    repairs: Repairs, faults: Sequence[Fault], words: Sequence[str], *, contiguous: bool
) -> Iterator[tuple[float, Edits]]:
    """Made distance by distance, since most are never asked for."""
    waiting: list[tuple[float, int, Edits]] = []
    number = count()
    around = [
        (spot, fault) for fault in faults for spot in islice(spots_of(repairs.file, fault.line, fault.grid), _SPOTS)
    ]
    around.sort(key=lambda each: each[0].distance)
    for distance, spots in groupby(around, key=lambda each: each[0].distance):
        least = _STEP * distance - SOONEST
        while waiting and waiting[0][0] < least:
            cost, _, edits = heapq.heappop(waiting)
            yield cost, edits
        for cost, edits in _of_spots(repairs, list(spots), words, contiguous=contiguous):
            heapq.heappush(waiting, (cost, next(number), edits))
    while waiting:
        cost, _, edits = heapq.heappop(waiting)
        yield cost, edits


def _of_spots(
    repairs: Repairs, spots: Sequence[tuple[Spot, Fault]], words: Sequence[str], *, contiguous: bool
) -> Iterator[tuple[float, Edits]]:
    file, groups = repairs.file, dict[tuple[str, Edits], list[tuple[float, Edits]]]()
    for spot, fault in spots:
        piece, idle = _piece(file, spot, fault), unread(spot.function) if spot.function in file.kernels else frozenset()
        for rank, edits in _of_spot(repairs, replace(spot, distance=0)):
            is_wanted = _has(edits, words) or (fault.is_turned and all(edit.text in _SIGNS for edit in edits))
            cost = rank + _STEP * spot.distance - (_WANTED if is_wanted else 0.0)
            cost -= _OF if _makes(spot, fault.of) else 0.0
            cost -= _UNREAD if idle and not idle.isdisjoint(_words_of(edits)) else 0.0
            cost += _SUMMED if fault.is_summed else 0.0
            cost += _FOREIGN if _is_foreign(spot, edits, file) else 0.0
            cost += _SAME if contiguous and _are_the_same(edits, file) else 0.0
            cost -= _PIECE if piece and any(edit.start < piece[1] and piece[0] < edit.end for edit in edits) else 0.0
            yield cost, edits
            groups.setdefault(_relative(file, spot, edits), []).append((cost, edits))
    for several in groups.values():
        different = {edits for _, edits in several}
        together = _joined(list(different)) if len(different) > 1 else None
        if together is not None:
            yield min(cost for cost, _ in several) - _TOGETHER, together


@lru_cache(maxsize=1024)  # the values of several lines come the same ways
def _of_spot(repairs: Repairs, spot: Spot) -> list[tuple[float, Edits]]:
    file = repairs.file
    ways = {"edits/stride_passed": stride_passed, "edits/owner_meant": owner_meant}
    ways |= {"edits/strides_of_what_is_passed": strides_of_what_is_passed, "edits/of_siblings": of_siblings}
    found = [one for name, way in ways.items() for one in gathered(name, way, file, spot, credit=_credit)]
    return [*found, *undone(repairs, spot)]


def _credit(one: tuple[float, Edits]) -> tuple[str, Edits]:
    return "edits", one[1]


def _is_foreign(spot: Spot, edits: Edits, file: KernelFile) -> bool:
    """Whether an edit puts in a stride of a tensor that nothing else in the statement is of."""
    new = [name for edit in edits for name in re.findall(r"\w+", edit.text) if stride_of(name)]
    if not new:
        return False
    spans = [(edit.start, edit.end) for edit in edits]
    kept = [node.id for node in spot.names if not any(a <= file.span(node)[0] < b for a, b in spans)]
    # Two strides of one tensor in each other's place are its own.
    kept += [name for edit in edits[1:] for name in re.findall(r"\w+", file.text[edit.start : edit.end])]
    return any(not belongs(name, kept) for name in new)


def _are_the_same(edits: Edits, file: KernelFile) -> bool:
    """Whether an edit only puts strides in the places of others that are the same when contiguous."""
    return all(same_when_contiguous(file.text[edit.start : edit.end], edit.text) for edit in edits)


def _piece(file: KernelFile, spot: Spot, fault: Fault) -> tuple[int, int] | None:
    """Where the piece that is known to be wrong stands, if it is the spot's."""
    if spot.distance or fault.column is None or not fault.length:
        return None
    line = file.lines[fault.line - 1]
    start = file.offset(fault.line, 0) + len(line) - len(line.lstrip()) + fault.column
    return start, start + fault.length


def _has(edits: Sequence[Edit], words: Sequence[str]) -> bool:
    """Whether an edit has all words, or is the tensor that the first of them names."""
    texts = [edit.text.lower() for edit in edits]
    return bool(words) and any(text == words[0] or all(word in text for word in words) for text in texts)


def _makes(spot: Spot, intermediate: str) -> bool:
    """Whether a statement assigns, or stores, what the field calls an intermediate."""
    names = in_kernels(intermediate)
    made = [each.id for each in spot.names] if isinstance(spot.statement, ast.Expr) else bound_in([spot.statement])
    return bool(names) and any(plain(core(name)) in names for name in made)


def _words_of(edits: Sequence[Edit]) -> set[str]:
    return {word for edit in edits for word in re.findall(r"\w+", edit.text)}


def _relative(file: KernelFile, spot: Spot, edits: Edits) -> tuple[str, Edits]:
    """An edit by its place in the statement's text: the same in every kernel that has that statement."""
    start, end = file.span(spot.statement)
    inside = [edit for edit in edits if start <= edit.start <= end]
    return file.text_of(spot.statement), tuple(Edit(one.start - start, one.end - start, one.text) for one in inside)


def _joined(several: Sequence[Edits]) -> Edits | None:
    ordered = sorted({edit for each in several for edit in each}, key=lambda edit: (edit.start, edit.end))
    overlap = any(one.end > two.start for one, two in zip(ordered, ordered[1:], strict=False))
    return None if overlap else tuple(ordered)
