"""Candidates: the edits of a file that may undo a fault of some lines, the likeliest first, each once."""

from __future__ import annotations

import ast
import difflib
import heapq
import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import count, groupby, islice, pairwise

from ...model.intermediates import in_kernels, plain
from ..kernel_file import KernelFile
from ..reach import statements
from ..text import Edit, edited
from ..triton_source import blocks
from .all_rows import undone
from .name_kinds import belongs, core, is_stride, same_when_contiguous
from .spots import Edits, Spot, spots_of

# How much a step away from the line at fault counts beside the ranks of the rows; a line that sums what another one
# leaves out, as a loop or its range does; a stride of a tensor that nothing else in the statement is of, since where
# strides agree it matches all the same; and a stride in the place of one that is the same number there.
_STEP, _SUMMED, _FOREIGN, _SAME = 1.0, 1.0, 1.5, 8.0
# What is taken off for the words that the right text is likely to have, for the same edit of the same statement in all
# kernels, where the statement makes the intermediate that is wrong, and for a name that the kernel never reads.
_WANTED, _TOGETHER, _OF, _UNREAD = 0.8, 0.5, 1.0, 0.7
_SIGNS = ("+", "-", "+=", "-=")
# What is seldom taken off by all of these together: what is that much likelier may come a little late.
SOONEST = 2.5
# Statements that are looked at around one line.
_SPOTS = 60


@dataclass(frozen=True)
class Fault:
    """A line at fault."""

    line: int
    grid: bool = False
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
    says: str = ""
    """What is wrong where it helps; "" where nobody knows."""
    is_wanted: bool = False
    """Whether it has the words that its cause says of the right text."""

    @property
    def text(self) -> str:
        """The file's text with it."""
        return edited(self.file.text, self.edits)

    @cached_property
    def diff(self) -> str:
        """The edit as a unified diff, with a line around each change."""
        name, texts = self.file.path.name, (self.file.text.splitlines(), self.text.splitlines())
        return "\n".join(difflib.unified_diff(*texts, name, name, lineterm="", n=1))

    @property
    def changes(self) -> list[str]:
        """The lines that it takes away and puts in, each with its sign."""
        return [line for line in self.diff.splitlines()[2:] if line[0] in "+-"]

    @property
    def lines(self) -> list[int]:
        """The lines of the file that it changes."""
        return sorted({self.file.text.count("\n", 0, edit.start) + 1 for edit in self.edits})

    @property
    def undone(self) -> Candidate:
        """The file as it is."""
        return Candidate(self.file, (), 0.0)

    def on_top_of(self, base: Candidate) -> Candidate | None:
        """With another edit; None where they overlap, and of another file or of the same lines."""
        if not base.edits:
            return self
        if base.file is not self.file or set(self.lines) <= set(base.lines):
            return None
        together = _joined([self.edits, base.edits])
        return replace(self, edits=together) if together else None


def candidates_of(
    file: KernelFile, faults: Sequence[Fault], wanted: Iterable[str] = (), *, contiguous: bool = False
) -> Iterator[Candidate]:
    """The candidates for a fault of these lines of a file, the likeliest first; none that can be seen to fail.

    Where some lines say the same in several kernels, the same edit in all of them comes before each alone.

    Args:
        wanted: words that the right text is likely to have: a tensor and its axis, of a stride.
        contiguous: whether it goes wrong where all tensors are contiguous.
    """
    costs = _Costs([word.lower() for word in wanted], contiguous)
    seen, known = set[Edits](), set[str | None]({None})
    for candidate in _by_cost(file, faults, costs):
        program = None if candidate.edits in seen else as_parsed(file, candidate.edits)
        seen.add(candidate.edits)
        if program not in known:
            known.add(program)
            yield candidate


def _by_cost(file: KernelFile, faults: Sequence[Fault], costs: _Costs) -> Iterator[Candidate]:
    """Made distance by distance, since most are never asked for."""
    waiting: list[tuple[float, int, Candidate]] = []
    around, number = list[tuple[int, Spot, Fault]](), count()
    for fault in faults:
        for distance, spot in islice(spots_of(file, fault.line, grid=fault.grid), _SPOTS):
            around.append((distance, spot, fault))
    around.sort(key=lambda each: each[0])
    for distance, spots in groupby(around, key=lambda each: each[0]):
        further = _STEP * distance
        while waiting and waiting[0][0] < further - SOONEST:
            yield heapq.heappop(waiting)[2]
        for each in _of_spots([(spot, fault) for _, spot, fault in spots], costs):
            cost = each.cost + further
            heapq.heappush(waiting, (cost, next(number), replace(each, cost=cost)))
    while waiting:
        yield heapq.heappop(waiting)[2]


def _of_spots(spots: Sequence[tuple[Spot, Fault]], costs: _Costs) -> Iterator[Candidate]:
    """The edits of some statements, then each that several have, in all of them."""
    alike: dict[object, list[Candidate]] = {}
    for spot, fault in spots:
        further = _SUMMED * fault.is_summed - _OF * _makes(spot, fault.of)
        for rank, edits, row in undone(spot):
            is_sign = fault.is_turned and all(edit.text in _SIGNS for edit in edits)
            is_wanted = is_sign or costs.are_wanted(edits)
            cost = rank + further + costs.of_names(spot, edits) - _WANTED * is_wanted
            candidate = Candidate(spot.file, edits, cost, row.says_of(spot.file, edits), is_wanted)
            yield candidate
            alike.setdefault(_relative(spot, edits), []).append(candidate)
    for several in alike.values():
        together = _joined(each.edits for each in several)
        if together and together != several[0].edits:
            least = min(several, key=lambda each: each.cost)
            yield replace(least, edits=together, cost=least.cost - _TOGETHER)


@dataclass(frozen=True)
class _Costs:
    """What is known of the right text."""

    words: Sequence[str]
    """Those that it is likely to have."""
    contiguous: bool

    def of_names(self, spot: Spot, edits: Edits) -> float:
        """What an edit costs by the names that it puts in."""
        text, cost = spot.file.text, 0.0
        words = {word for edit in edits for word in re.findall(r"\w+", edit.text)}
        if words & spot.unread:
            cost -= _UNREAD
        # Two strides of one tensor in each other's place are its own.
        beside = [text[edit.start : edit.end] for edit in edits[1:]]
        for node in spot.names:
            place = spot.file.span(node)[0]
            if not any(edit.start <= place < edit.end for edit in edits):
                beside.append(node.id)
        if not all(belongs(word, beside) for word in words if is_stride(word)):
            cost += _FOREIGN
        pairs = [(text[edit.start : edit.end], edit.text) for edit in edits]
        return cost + _SAME * (self.contiguous and all(same_when_contiguous(*pair) for pair in pairs))

    def are_wanted(self, edits: Edits) -> bool:
        """Whether one has all words, or is the tensor that the first of them names."""
        if not self.words:
            return False
        begins = re.compile(rf"(?<![a-z]){re.escape(self.words[0])}")
        texts = [edit.text.lower() for edit in edits]
        return any(begins.search(text) and all(word in text for word in self.words) for text in texts)


def _makes(spot: Spot, intermediate: str) -> bool:
    """Whether a statement assigns, or stores, what the field calls an intermediate."""
    names = in_kernels(intermediate)
    made = spot.targets or [each.id for each in spot.names]
    return bool(names) and any(plain(core(name)) in names for name in made)


def _relative(spot: Spot, edits: Edits) -> tuple[str, Edits]:
    """An edit by its place in the statement's text: the same in every kernel that has that statement."""
    start = spot.file.span(spot.statement)[0]
    own = tuple(Edit(edit.start - start, edit.end - start, edit.text) for edit in edits)
    return spot.file.text_of(spot.statement), own


def _joined(several: Iterable[Edits]) -> Edits | None:
    """All edits as one; None where two overlap."""
    ordered = sorted({edit for each in several for edit in each}, key=lambda edit: (edit.start, edit.end))
    overlap = any(first.end > second.start for first, second in pairwise(ordered))
    return None if overlap else tuple(ordered)


def as_parsed(file: KernelFile, edits: Sequence[Edit]) -> str | None:
    """What an edit makes of the statements that it is in, the same for edits that come to the same.

    Returns:
        None where it is no Python, or changes nothing.
    """
    found = dict[tuple[int, int], list[Edit]]()
    for edit in edits:
        for start, end in _pieces(file):
            if start <= edit.start <= edit.end <= end:
                found.setdefault((start, end), []).append(Edit(edit.start - start, edit.end - start, edit.text))
                break
    try:
        parts = {piece: _dumped(edited(file.text[slice(*piece)], own)) for piece, own in sorted(found.items())}
    except (SyntaxError, ValueError):
        return None
    is_same = all(part == _dumped(file.text[slice(*piece)]) for piece, part in parts.items())
    return None if is_same else str(parts)


@lru_cache(maxsize=16)
def _pieces(file: KernelFile) -> list[tuple[int, int]]:
    """Where simple statements stand, and behind all of these whole functions without their decorators."""
    simple = [each for function in file.functions for each in statements(function.body) if not blocks(each)]
    return [*map(file.span, simple), *((file.offset(each.lineno, 0), file.span(each)[1]) for each in file.functions)]


@lru_cache(maxsize=1024)
def _dumped(text: str) -> str:
    return ast.dump(ast.parse(textwrap.dedent(text)))
