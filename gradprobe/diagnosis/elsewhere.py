"""Loads of other rows or keys than a mask takes them for: it is right for those that lie whole tiles further on."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from ..inputs.memory import Array
from ..runtime.interpreter.dataflow import Node, Site
from ..runtime.interpreter.memory.findings import places
from .follow import Followed
from .misread import WORDS, addressing
from .roles import VANISHING
from .suspect import Suspect, share


def masked_elsewhere(run: Followed) -> Iterator[Suspect]:
    """The loads of what a mask covers as if it lay elsewhere, where the mask is right for what lies there."""
    masked = defaultdict[Site, list[Node]](list)
    for node in run.flow.nodes:
        is_select = node.site.operation == "select" and node.role is not None
        if (is_select or _adds_a_mask(node)) and _scores(node) is not None:
            masked[node.site].append(node)
    added = Counter(node.site for node in run.flow.nodes if node.site.operation == "fadd")
    for site, nodes in masked.items():
        by = _by(run, nodes) if added[site] in (0, len(nodes)) else {}
        if by:
            yield from _suspects_of(run, site, nodes, by)


def _scores(node: Node) -> Node | None:
    """What was masked, before any mask."""
    while node.site.operation == "select" or _adds_a_mask(node):
        # Of scores that no row sees nothing is known. What a mask is added to is them all the same.
        is_compared = node.site.operation == "select"
        made = [one for one in node.operands if one.lanes is not None and (one.role is not None or not is_compared)]
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


def _by(run: Followed, nodes: Sequence[Node]) -> dict[Node, int]:
    """By how many keys further each tile is masked; empty where that explains not all, or no mask's edge shows it."""
    found, is_shown = dict[Node, int](), False
    of_rows = defaultdict[tuple[int, ...], list[Node]](list)
    for node in nodes:
        if (key := _place(node)) is not None:
            of_rows[key[:3]].append(node)
    for tiles in of_rows.values():
        # A mask of which one end alone is elsewhere is a wrong one: all tiles of some rows must agree.
        by = next((by for by in _offers(run, tiles[0]) if all(_fits(run, one, by) is not None for one in tiles)), None)
        if by is None:
            return {}
        found |= dict.fromkeys(tiles, by) if by else {}
        is_shown |= bool(by) and any(_fits(run, one, by) for one in tiles)
    return found if is_shown else {}


def _place(node: Node) -> tuple[int, ...] | None:
    """The first batch, head, row and key of a tile."""
    index = _index(node)
    return tuple(int(each.min()) for each in index[:-1]) if index[0].size else None


def _index(node: Node) -> tuple[Array, ...]:
    """Batch, head, row and key of the entries of a tile that have all four, and whether each is left unmasked."""
    scores = _scores(node)
    assert node.lanes is not None
    assert node.value is not None
    assert scores is not None
    at = [np.broadcast_to(node.lanes.at[x], node.value.shape) for x in "bhmn"]
    known = np.logical_and.reduce([each >= 0 for each in at])
    kept = node.value == scores.value
    return (*(each[known] for each in at), kept[known])


def _offers(run: Followed, node: Node) -> Iterator[int]:
    """0, and whole tiles of keys or rows to either side."""
    _, _, m, n, _ = _index(node)
    keys = run.roles.valid.shape[3]
    sizes = {len(np.unique(each)) for each in (m, n)}
    every = {sign * by for size in sizes for by in range(size, keys, size) for sign in (1, -1)}
    yield from (0, *sorted(every, key=lambda by: (abs(by), by)))


def _fits(run: Followed, node: Node, by: int) -> bool | None:
    """Whether the edge of a mask that lies so many keys further on shows in a tile; None where it is another mask."""
    b, h, m, n, kept = _index(node)
    there = (n + by >= 0) & (n + by < run.roles.valid.shape[3])
    valid, kept = run.roles.valid[b[there], h[there], m[there], n[there] + by], kept[there]
    return None if not np.array_equal(valid, kept) else bool(kept.any() and not kept.all())


def _suspects_of(run: Followed, site: Site, nodes: Sequence[Node], by: Mapping[Node, int]) -> Iterator[Suspect]:
    flow, first = run.flow, next(iter(by))
    letter = "m" if _goes_over_rows(nodes) else "n"
    load, at = _load(first, letter), _place(first)
    number = next((number for number, one in enumerate(flow.sources) if load and one.site == load.site), None)
    if number is None or at is None:
        return
    source, here = flow.sources[number], at["bhmn".index(letter)]
    there = here + by[first] if letter == "n" else here - by[first]
    reason = (
        f"{source.tensor} is read at {WORDS[letter]} {here}, and line {places(site.lines)[-1].line} masks it as if "
    )
    reason += f"it were {WORDS[letter]} {there}: the mask is right for that"
    moved = [each for each, x in flow.reached if x == letter and flow.sources[each].site.kernel == site.kernel]
    beside, extent = tuple(addressing(flow, number, moved)), share(len(by), len(nodes), "tile")
    yield Suspect(
        "load", source.tensor, source.site, source.site.lines, reason, extent, beside=beside, used=(site.lines,),
        letter=letter, reached=((there, here),),
    )  # fmt: skip


def _goes_over_rows(nodes: Sequence[Node]) -> bool:
    """Whether a program's loop goes over rows: from a tile to the next the rows are others, and the keys are not."""
    one, other = ((_place(each) or ())[2:] for each in (nodes[0], nodes[min(1, len(nodes) - 1)]))
    return one[:1] != other[:1] and one[1:] == other[1:]


def _load(node: Node, letter: str) -> Node | None:
    """The load of the input that gives scores their rows or keys; nothing behind a load, which other kernels made."""
    pending = [node]
    while pending:
        one = pending.pop()
        if one.site.operation != "load":
            pending += one.operands
        elif one.lanes is not None and letter in one.lanes.at:
            return one
    return None
