"""Loads of other rows or keys than a mask takes them for: it is right for those that lie whole tiles further on."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from ...inputs.memory import Array
from ...model.intermediates import AXIS_WORDS
from ...runtime.interpreter.dataflow import Node, Site, behind
from ...runtime.interpreter.memory.findings import places
from ..follow import FollowedRun
from ..roles import VANISHING
from .misread import addressing
from .suspect import Suspect, share


def masked_elsewhere(run: FollowedRun) -> Iterator[Suspect]:
    """The loads of what a mask covers as if it lay elsewhere, where the mask is right for what lies there."""
    masked = defaultdict[Site, list[Node]](list)
    for node in run.flow.nodes:
        is_select = node.site.operation == "select" and node.role is not None
        if (is_select or _adds_a_mask(node)) and _scores(node) is not None:
            masked[node.site].append(node)
    added = Counter(node.site for node in run.flow.nodes if node.site.operation == "fadd")
    for site, nodes in masked.items():
        if added[site] in (0, len(nodes)) and (by := _by(run, nodes)):
            yield from _suspects_of(run, site, nodes, by)


def _scores(node: Node) -> Node | None:
    """What was masked, before any mask."""
    while (is_select := node.site.operation == "select") or _adds_a_mask(node):
        # Of scores that no row sees nothing is known. What a mask is added to is them all the same.
        made = [one for one in node.operands if one.lanes is not None and (one.role is not None or not is_select)]
        if node.lanes is None or not set("bhmn") <= node.lanes.at.keys() or not made:
            return None
        node = made[0]
    return node


def _adds_a_mask(node: Node) -> bool:
    """Whether it adds 0 to some scores, and to all others so little that their exponential vanishes."""
    if node.site.operation != "fadd" or len(node.operands) != 1:
        return False
    value, before = node.value, node.operands[0].value
    if value is None or before is None or value.shape != before.shape:
        return False
    return bool(((value == before) | (value < before - VANISHING)).all())


def _by(run: FollowedRun, nodes: Sequence[Node]) -> int:
    """By how many keys further all tiles are masked; 0 where that explains not all, or no mask's edge shows it."""
    for by in _offers(run, nodes[0]):
        # A mask of which one end alone is elsewhere is a wrong one: all tiles must agree.
        fits = [_fits(run, node, by) for node in nodes]
        if None not in fits:
            return by if any(fits) else 0
    return 0


def _place(node: Node) -> tuple[int, ...]:
    """The first batch, head, row and key of a tile; () where none is known."""
    index = _index(node)
    return tuple(int(each.min()) for each in index[:-1]) if index[0].size else ()


def _index(node: Node) -> tuple[Array, ...]:
    """Batch, head, row and key of the entries of a tile that have all four, and whether each is left unmasked."""
    scores = _scores(node)
    assert node.lanes is not None
    assert node.value is not None
    assert scores is not None
    at = [np.broadcast_to(node.lanes.at[x], node.value.shape) for x in "bhmn"]
    known = np.logical_and.reduce([each >= 0 for each in at])
    return (*(each[known] for each in at), (node.value == scores.value)[known])


def _offers(run: FollowedRun, node: Node) -> Iterator[int]:
    """0, and whole tiles of keys or rows to either side."""
    _, _, m, n, _ = _index(node)
    keys = run.roles.valid.shape[3]
    sizes = {len(np.unique(each)) for each in (m, n)}
    every = {sign * by for size in sizes for by in range(size, keys, size) for sign in (1, -1)}
    yield from (0, *sorted(every, key=lambda by: (abs(by), by)))


def _fits(run: FollowedRun, node: Node, by: int) -> bool | None:
    """Whether the edge of a mask that lies so many keys further on shows in a tile; None where it is another mask."""
    b, h, m, n, kept = _index(node)
    there = (n + by >= 0) & (n + by < run.roles.valid.shape[3])
    valid, kept = run.roles.valid[b[there], h[there], m[there], n[there] + by], kept[there]
    return None if not np.array_equal(valid, kept) else bool(kept.any() and not kept.all())


def _suspects_of(run: FollowedRun, site: Site, nodes: Sequence[Node], by: int) -> Iterator[Suspect]:
    flow, first, second = run.flow, _place(nodes[0]), _place(nodes[min(1, len(nodes) - 1)])
    # Where a program's loop goes over rows, the rows of the next tile are others, and the keys are not.
    letter = "m" if first[2:3] != second[2:3] and first[3:] == second[3:] else "n"
    load = _load(nodes[0], letter)
    number = next((number for number, one in enumerate(flow.sources) if load and one.site == load.site), None)
    if number is None or not first:
        return
    source, here, line = flow.sources[number], first["bhmn".index(letter)], places(site.lines)[-1].line
    there = here + by if letter == "n" else here - by
    reason = f"{source.tensor} is read at {AXIS_WORDS[letter]} {here}, and line {line} masks it as if it were "
    reason += f"{AXIS_WORDS[letter]} {there}: the mask is right for that"
    moved = [each for each, x in flow.reached if x == letter and flow.sources[each].site.kernel == site.kernel]
    yield Suspect(
        "load", source.tensor, source.site, source.site.lines, reason, share(len(nodes), len(nodes), "tile"),
        beside=tuple(addressing(flow, number, moved)), used=(site.lines,), letter=letter, reached=((there, here),),
    )  # fmt: skip


def _load(node: Node, letter: str) -> Node | None:
    """The load of the input that gives scores their rows or keys; nothing behind a load, which other kernels made."""
    for one in behind([node], lambda one: one.operands if one.site.operation != "load" else ()):
        if one.site.operation == "load" and one.lanes is not None and letter in one.lanes.at:
            return one
    return None
