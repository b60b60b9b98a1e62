"""Vectors that meet scores along the wrong axis: `dp - delta` for `dp - delta[:, None]`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ..runtime.interpreter.dataflow import Crossing, Flow, Node
from .first_wrong import expected
from .suspect import Suspect, share


def crossed(flow: Flow) -> Iterator[Suspect]:
    """The operations in which a vector of rows goes along the keys of scores, or one of keys along their rows.

    None of a kernel in which tiles of scores disagree about rows or keys among themselves: then they may lie across.
    """
    unsure = {one.site.kernel for one in flow.conflicts if set(one.letter) & set("mn")}
    times = Counter(node.site for node in flow.nodes)
    first: dict[object, Crossing] = {}
    for one in flow.crossings:
        first.setdefault(one.site, one)
    for one in first.values():
        if one.site.kernel not in unsure:
            seen = sum(other.site == one.site for other in flow.crossings)
            name = expected(Node(one.site, (one.scores, one.vector)), flow.nodes)
            yield Suspect("value", name, one.site, one.site.lines, _describe(one), share(seen, times[one.site], "tile"))


def _describe(one: Crossing) -> str:
    vector, scores = (node.role.formula if node.role and node.role.name else "" for node in (one.vector, one.scores))
    own, other = ("row", "key") if one.letter == "m" else ("key", "row")
    made = f"{vector or 'a vector'}, one number a {own},"
    return f"{made} goes along the {other}s of {scores or 'the scores'} here"
