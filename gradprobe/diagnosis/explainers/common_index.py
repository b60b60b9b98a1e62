"""A common index: the line that makes the number of a batch or head by which several tensors are misread alike.

Where the head of K and V is wrong, K disagrees with q and V with dO. By votes q or dO may lose, which are right. A line
that all addresses of one side have in common, and none of the other, is one fault, where they would be several.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from ...runtime.interpreter.dataflow import Conflict, Flow

# What is one number throughout a program.
_LETTERS = ("b", "h", "g")


def common_index(flow: Flow, conflicts: Sequence[Conflict]) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """The lines that make the index, the likeliest first, and the accesses that are addressed by it, the loads first.

    None where something else is misread too, where no line tells the sides of every conflict apart, or where lines of
    either side do: then nobody knows which of them is at fault.
    """
    if any(one.letter not in _LETTERS for one in conflicts):
        return None
    sides: dict[frozenset[int], list[int]] = defaultdict(list)
    behind = _union(flow.slices.get(number, frozenset()) for one in conflicts for number in one.left | one.right)
    for line in behind - flow.spread:
        users = frozenset(number for number, lines in flow.slices.items() if line in lines)
        accused = [_accused(one, users) for one in conflicts]
        if all(accused) and not any(_is_right(flow, number) for number in users - _union(accused)):
            sides[_union(accused)].append(line)
    if len(sides) != 1:
        return None
    ((misled, lines),) = sides.items()
    # The number of a head is mostly a quotient or a remainder; what is multiplied by it is less likely wrong.
    ordered = sorted(lines, key=lambda line: (line in flow.divided, line), reverse=True)
    by_kind = sorted(misled, key=lambda number: (flow.sources[number].site.operation != "load", number))
    return (tuple(ordered), tuple(by_kind)) if len(misled) > 1 else None


def _union(sets: Iterable[frozenset[int]]) -> frozenset[int]:
    return frozenset[int]().union(*sets)


def _accused(conflict: Conflict, users: frozenset[int]) -> frozenset[int]:
    """The side of a conflict of which every access has an address made by a line; none where both are, or neither."""
    whole = [side for side in (conflict.left, conflict.right) if side and side <= users]
    return whole[0] if len(whole) == 1 else frozenset()


def _is_right(flow: Flow, number: int) -> bool:
    """Whether a load met others, and it is in no conflict that is asked about."""
    return flow.sources[number].site.operation == "load" and any(flow.agreed[number, x] for x in _LETTERS)
