"""The edits of a file that may undo a fault of some lines."""

import ast
import heapq
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import chain, count, islice

from ...model.intermediates import in_kernels, plain
from ..kernel_file import KernelFile
from ..parameter_names import belongs, core, has_axis, same_when_contiguous
from ..syntax import Edit, Edits, blocks, edited
from .all_rows import undone
from .candidate import SOONEST, Candidate, Fault, joined
from .patterns import Spot, spots_of

# How much a step away from the line at fault counts beside the ranks of the rows; a line that sums what another one
# leaves out, as a loop or its range does; a stride of a tensor that nothing else in the statement is of, since where
# strides agree it matches all the same; and a stride in the place of one that is the same number there.
_STEP, _SUMMED, _FOREIGN, _SAME = 1.0, 1.0, 1.5, 8.0
# What is taken off for the words that the right text is likely to have, for the same edit of the same statement in all
# kernels, where the statement makes the intermediate that is wrong, and for a name that the kernel never reads.
_WANTED, _TOGETHER, _OF, _UNREAD = 0.8, 0.5, 1.0, 0.7
_SIGNS = {"+", "-", "+=", "-="}
_WORD = re.compile(r"\w+")
_SPOTS = 60
_Place = tuple[Spot, Fault]


def candidates_of(
    file: KernelFile,
    faults: Sequence[Fault],
    wanted: Iterable[str] = (),
    *,
    contiguous: bool = False,
) -> Iterator[Candidate]:
    """Each once, the likeliest first; all are Python and change something.

    Args: wanted: words that the right text may have; contiguous: whether contiguous tensors go wrong.
    """
    words = list(map(re.escape, map(str.lower, wanted)))
    # All of them, of which the first begins a word; or nothing.
    every = "".join(map("(?=.*{})".format, words))
    right = f"{every}.*(?<![a-z]){words[0]}" if words else "(?!)"
    seen, known = set[Edits](), set[str | None]({None})
    for candidate in _by_cost(file, faults, re.compile(right, re.DOTALL), contiguous):
        program = None if candidate.edits in seen else as_parsed(file, candidate.edits)
        seen.add(candidate.edits)
        if program not in known:
            known.add(program)
            yield candidate


def _by_cost(
    file: KernelFile, faults: Sequence[Fault], right: re.Pattern[str], contiguous: bool
) -> Iterator[Candidate]:
    around, number = defaultdict[int, list[_Place]](list), count()
    waiting = list[tuple[float, int, Candidate]]()
    for fault in faults:
        for distance, spot in islice(spots_of(file, fault.line, grid=fault.grid), _SPOTS):
            around[distance].append((spot, fault))
    for distance in sorted(around):
        while waiting and waiting[0][0] < _STEP * distance - SOONEST:
            yield heapq.heappop(waiting)[2]
        for each in _of_spots(around[distance], right, contiguous):
            cost = each.cost + _STEP * distance
            heapq.heappush(waiting, (cost, next(number), replace(each, cost=cost)))
    while waiting:
        yield heapq.heappop(waiting)[2]


def _of_spots(
    spots: Iterable[_Place], right: re.Pattern[str], contiguous: bool
) -> Iterator[Candidate]:
    alike = defaultdict[object, list[Candidate]](list)
    for spot, fault in spots:
        text, start = spot.file.text_of(spot.statement), spot.file.span(spot.statement)[0]
        further = _SUMMED * fault.is_summed - _OF * _makes(spot, fault.of)
        for rank, edits, row in undone(spot):
            news = [edit.text for edit in edits]
            is_turn = fault.is_turned and _SIGNS.issuperset(news)
            is_wanted = is_turn or any(map(right.match, map(str.lower, news)))
            cost = rank + further + _cost_of_names(spot, edits, contiguous) - _WANTED * is_wanted
            says = row.says_of(spot.file, edits)
            candidate = Candidate(spot.file, edits, cost, says, is_wanted)
            yield candidate
            alike[text, tuple(edit.shifted(-start) for edit in edits)].append(candidate)
    for several in alike.values():
        together = joined(several)
        if together and together != several[0].edits:
            least = min(several, key=lambda each: each.cost)
            yield replace(least, edits=together, cost=least.cost - _TOGETHER)


def _cost_of_names(spot: Spot, edits: Edits, contiguous: bool) -> float:
    olds = [spot.file.text[edit.start : edit.end] for edit in edits]
    news = [edit.text for edit in edits]
    words = _WORD.findall(" ".join(news))
    cost = 0.0 if spot.unread.isdisjoint(words) else -_UNREAD
    # Two strides of one tensor in each other's place are its own.
    strides, beside = list(filter(has_axis, words)), olds[1:]
    for node in spot.names if strides else ():
        place = spot.file.span(node)[0]
        if not any(edit.start <= place < edit.end for edit in edits):
            beside.append(node.id)
    cost += 0.0 if all(belongs(word, beside) for word in strides) else _FOREIGN
    return cost + _SAME * (contiguous and all(map(same_when_contiguous, olds, news)))


def _makes(spot: Spot, intermediate: str) -> bool:
    names = in_kernels(intermediate)
    return any(plain(core(name)) in names for name in spot.targets or spot.reads)


def as_parsed(file: KernelFile, edits: Iterable[Edit]) -> str | None:
    """By its syntax; None where that is no Python or no change."""
    found, is_changed = list[str](), False
    for top in file.tree.body:
        own = _inside(file, top, edits)
        if own:
            node = _innermost(file, top, own)
            start, end = file.span(node)
            # A statement of a function is one of a block as well.
            head = "if True:\n" + " " * node.col_offset if node.col_offset else ""
            text = file.text[start:end]
            try:
                before = _dumped(head + text)
                after = _dumped(head + edited(text, [edit.shifted(-start) for edit in own]))
            except (SyntaxError, ValueError):
                return None
            found.append(f"{start} {after}")
            is_changed |= before != after
    return str(found) if is_changed else None


def _inside(file: KernelFile, node: ast.AST, edits: Iterable[Edit]) -> list[Edit]:
    (start, end), found = file.span(node), list[Edit]()
    for edit in edits:
        if start <= edit.start <= edit.end <= end:
            found.append(edit)
    return found


def _innermost(file: KernelFile, node: ast.stmt, edits: list[Edit]) -> ast.stmt:
    """The statement that holds all of them, which is read in less time than its function."""
    for statement in chain.from_iterable(blocks(node)):
        is_elif = file.text.startswith("elif", file.span(statement)[0])
        if not is_elif and len(_inside(file, statement, edits)) == len(edits):
            return _innermost(file, statement, edits)
    return node


@lru_cache(maxsize=1024)
def _dumped(text: str) -> str:
    return ast.dump(ast.parse(text))
