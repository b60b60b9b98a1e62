"""Vectors that meet scores along the wrong axis: `dp - delta` for `dp - delta[:, None]`."""

from __future__ import annotations

from collections.abc import Iterator

from ...model.intermediates import AXIS_WORDS
from ...runtime.interpreter.dataflow import Crossing, Node, Site
from ..follow import FollowedRun
from .first_wrong import expected
from .suspect import Suspect, share


def crossed(run: FollowedRun) -> Iterator[Suspect]:
    """The operations in which a vector of rows goes along the keys of scores, or one of keys along their rows.

    None of a kernel in which tiles of scores disagree about rows or keys among themselves: then they may lie across.
    """
    unsure = {one.site.kernel for one in run.flow.conflicts if set(one.letter) & set("mn")}
    found: dict[Site, list[Crossing]] = {}
    for one in run.flow.crossings:
        found.setdefault(one.site, []).append(one)
    for site, (first, *others) in found.items():
        if site.kernel not in unsure:
            name = expected(Node(site, (first.scores, first.vector)), run)
            extent = share(1 + len(others), run.tiles[site], "tile")
            yield Suspect("value", name, site, site.lines, _reason(first), extent)


def _reason(crossing: Crossing) -> str:
    met = (crossing.vector, crossing.scores)
    vector, scores = (node.role.formula if node.role and node.name else "" for node in met)
    own, other = ("m", "n") if crossing.letter == "m" else ("n", "m")
    made = f"{vector or 'a vector'}, one number a {AXIS_WORDS[own]},"
    return f"{made} goes along the {AXIS_WORDS[other]}s of {scores or 'the scores'} here"
