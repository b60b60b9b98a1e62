"""Sums that lack pairs of a row and a key, or hold some twice."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np

from ..inputs.memory import Array
from ..model.intermediates import PRODUCTS
from ..model.number import plural
from ..model.run import ASKED, LACKING, MORE, NONE, TWICE, Visited
from ..runtime.interpreter.dataflow import Flow, Node, Site, StoredTile
from ..runtime.interpreter.memory.findings import Line
from .follow import Followed
from .misread import culprits_of
from .stores import result_of, wrong_stores
from .suspect import NEVER, Suspect, share


def pairs(run: Followed, wrong: Sequence[str]) -> Iterator[Suspect]:
    """Results that some pairs of a row and a key are left out of, or counted twice in."""
    of_wrong = {one.home for one in wrong_stores(run, wrong)}
    for home, visits in visits_of(run).items():
        if home not in of_wrong:
            continue
        stores = [one for one in run.flow.stores if one.home == home]
        name = result_of(run, stores[0])
        missing, twice = run.roles.valid & (visits == 0), run.roles.valid & (visits > 1)
        # Scratch that host code makes a result of may well hold what is stored twice.
        pairs, what = (
            (missing, "left out")
            if missing.any() or home not in run.outcome.storages
            else (twice, "counted more than once")
        )
        if not pairs.any() or name not in wrong:
            continue
        of_pairs = (one for one in stores if any(part.any() for part, _ in _lanes_of(one.node, pairs)))
        stored = next(of_pairs, stores[0])
        site, *others = _summing(stored.node)
        extent = share(int(pairs.sum()), int(run.roles.valid.sum()), "pair")
        if missing.any() and (of := _whole(run.roles.valid, missing, name)):
            reason = f"no program sums {name} for {of}"
            yield Suspect("unstored", name, site, site.lines, reason, extent)
            continue
        b, h, m, n = (int(at) for at in np.argwhere(pairs)[0])
        first = f"the first of row {m} and key {n} (batch {b}, head {h})"
        reason = f"{int(pairs.sum()):,} pairs of a row and a key are {what}, {first}"
        reason += f", {NEVER}" if missing.any() and not (missing & _worked_on(run, (site, *others))).any() else ""
        beside, counted = tuple(one.lines for one in others), tuple(_counting(run.flow, stored))
        yield Suspect("pairs", name, site, site.lines, reason, extent, beside=beside, counted=counted)


def _worked_on(run: Followed, sites: Collection[Site]) -> Array:
    """[batch, heads, rows, keys] bool: the pairs that a product of some dots is of, whatever became of it."""
    worked = np.zeros_like(run.roles.valid)
    for node in (one for one in run.flow.nodes if one.site in sites):
        for part, counted in _lanes_of(node, worked):
            np.logical_or(part, counted, out=part)
    return worked


def _lanes_of(node: Node, pairs: Array) -> Iterator[tuple[Array, Array]]:
    """Of [batch, heads, rows, keys] the part that is of the row, or key, of each lane of a sum; and what it sums."""
    cover, at = (node.lanes.cover, node.lanes.at) if node.lanes is not None else (None, {})
    kept = {"m": "n", "n": "m"}[cover.letter] if cover is not None else ""
    if cover is None or not {"b", kept} <= at.keys():
        return
    batch, index = (at[x].max(tuple(axis for axis in range(at[x].ndim) if axis != cover.axis)) for x in ("b", kept))
    for lane in np.flatnonzero((batch >= 0) & (index >= 0)):
        part = pairs[batch[lane], :, index[lane], :] if kept == "m" else pairs[batch[lane], :, :, index[lane]]
        yield part, cover.counts[lane] > 0


def _counting(flow: Flow, stored: StoredTile) -> Iterator[tuple[Line, ...]]:
    """The lines that are in the address of each load whose rows, or keys, are summed over, and of no other load."""
    cover = stored.node.lanes.cover if stored.node.lanes is not None else None
    loads = [
        number
        for number, one in enumerate(flow.sources)
        if (one.site.kernel, one.site.operation) == (stored.site.kernel, "load")
    ]
    having = [flow.slices[number] for number in loads if cover is not None and (number, cover.letter) in flow.reached]
    others = (flow.slices[number] for number in loads if cover is None or (number, cover.letter) not in flow.reached)
    own = frozenset.intersection(*having).difference(*others) if having else frozenset[int]()
    yield from (flow.lines[number] for number in sorted(own, reverse=True))


def _whole(valid: Array, missing: Array, name: str) -> str:
    """The rows of a result all of whose pairs are missing, where no others are; "" where there are others."""
    word, axes = ("key", (0, 1, 2)) if name in ("dK", "dV") else ("row", (0, 1, 3))
    none_left = ~(valid & ~missing).any(axes) & valid.any(axes)
    if not none_left.any() or missing.any(axes)[~none_left].any():
        return ""
    return f"{plural(int(none_left.sum()), word)}, the first {int(np.flatnonzero(none_left)[0])}"


def nothing_summed(run: Followed, wrong: Sequence[str]) -> Iterator[Suspect]:
    """Results into which nothing was summed: the loop that makes them never runs."""
    if run.flow.failures:  # what could not be followed may have been loaded
        return
    filled, total = {one.home for one in run.flow.stores}, int(run.roles.valid.sum())
    for home, site in run.flow.empty.items():
        name = run.outcome.storages.get(home, "")
        if name in wrong and home not in filled:
            reason = "what is stored comes from no load"
            yield Suspect("pairs", name, site, site.lines, reason, share(total, total, "pair"))


def visits_of(run: Followed) -> Mapping[int, Array]:
    """How often pairs were visited; of a run that could not be followed throughout nothing, since some may lack."""
    return {} if run.flow.failures else run.flow.visits


def visited_in(run: Followed, wrong: Collection[str]) -> tuple[Visited, ...]:
    """What each result was summed over, tile by tile, in the first head in which that is not what is asked for.

    Where something is misread, its rows and keys are those of other elements: then no pair is known to lack. And none
    lacks in what is right.

    Args:
        wrong: the results that are wrong.
    """
    found, is_read = list[Visited](), not culprits_of(run.flow)
    for home, visits in visits_of(run).items():
        stored = next((one for one in run.flow.stores if one.home == home), None)
        name = run.outcome.storages.get(home, "")
        if stored is not None and name in PRODUCTS:
            odd = (visits != 1) & run.roles.valid
            batch, head = (int(at) for at in np.argwhere(odd.any((2, 3)) | ~odd.any())[0])
            if not odd.any() or (is_read and name in wrong):
                found.append(_tiles(run, name, stored.site.kernel, (batch, head), visits))
    return tuple(found)


def _tiles(run: Followed, name: str, kernel: str, at: tuple[int, int], visits: Array) -> Visited:
    valid, came, (m, n) = run.roles.valid[at], visits[at], (run.roles.case.block_m, run.roles.case.block_n)
    lines = [
        "".join(_sign(valid[i : i + m, j : j + n], came[i : i + m, j : j + n]) for j in range(0, valid.shape[1], n))
        for i in range(0, valid.shape[0], m)
    ]
    return Visited(name=name, kernel=kernel, batch=at[0], head=at[1], tile=(m, n), tiles=tuple(lines))


def _sign(valid: Array, came: Array) -> str:
    if (came > 1)[valid].any():
        return TWICE
    if (came == 0)[valid].any():
        return LACKING
    if not valid.any():
        return MORE if came.any() else NONE
    return ASKED


def are_partial(run: Followed, nodes: Sequence[Node]) -> bool:
    """Whether what these were stored into does not hold all pairs: right as far as it was summed."""
    homes = {stored.home for stored in run.flow.stores if stored.node in nodes}
    visits = visits_of(run)
    return any(bool((run.roles.valid & (visits[home] == 0)).any()) for home in homes if home in visits)


def partly(node: Node, extent: str) -> Suspect:
    """What is stored is right as far as it was summed, and does not hold all that it should."""
    assert node.role is not None
    site, *_ = _summing(node)
    reason = f"{node.role.formula} is stored before all keys are in it"
    return Suspect("pairs", node.role.name, site, site.lines, reason, extent)


def _summing(node: Node) -> tuple[Site, ...]:
    """The dots that a result was summed by, the last first; one that sums nothing itself stands for them."""
    pending, seen, found = [node], set[int](), dict[Site, None]()
    while pending:
        one = pending.pop(0)
        if one.number in seen:
            continue
        seen.add(one.number)
        if one.site.operation in ("dot", "reduce"):
            found[one.site] = None
            # What it is added to, where that is an operand of its own, was summed by others.
            pending += [operand for operand in one.operands[2:] if one.site.operation == "dot"]
        else:
            pending += one.operands
    dots = tuple(site for site in found if site.operation == "dot")
    return dots or tuple(found) or (node.site,)
