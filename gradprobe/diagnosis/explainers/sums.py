"""Results that lack something: pairs of a row and a key that are not summed, and what no program stores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ...frontends.triton.interpreter.dataflow import Node, Site, StoredTile, behind
from ...inputs.memory import Array
from ...model.intermediates import AXIS_WORDS, title
from ...model.number import plural
from ..follow import FollowedRun
from .suspect import Suspect, share


def pairs(run: FollowedRun) -> Iterator[Suspect]:
    """Results that some pairs of a row and a key are left out of."""
    of_wrong, valid = {one.home for one in run.stores}, run.roles.valid
    for home, visits in run.visits.items():
        stores = [one for one in run.flow.stores if one.home == home]
        if home not in of_wrong or (name := run.result_of(stores[0])) not in run.wrong:
            continue
        missing = valid & (visits == 0)
        if missing.any():
            yield _left_out(run, name, stores, missing)


def _left_out(run: FollowedRun, name: str, stores: Sequence[StoredTile], missing: Array) -> Suspect:
    of_missing = (one for one in stores if any(part.any() for part, _ in _lanes_of(one.node, missing)))
    sites, worked = summing(next(of_missing, stores[0]).node), np.zeros_like(missing)
    for node in (one for one in run.flow.nodes if one.site in sites):
        for part, counted in _lanes_of(node, worked):
            np.logical_or(part, counted, out=part)
    b, h, m, n = (int(at) for at in np.argwhere(missing)[0])
    reason = f"{int(missing.sum()):,} pairs of a row and a key are left out, the first of row {m} and key {n} "
    is_lost = bool((missing & worked).any())
    reason += f"(batch {b}, head {h})" + ("" if is_lost else ", and no product uses them")
    extent = share(int(missing.sum()), int(run.roles.valid.sum()), "pair")
    site, *others = sites
    beside = tuple(one.lines for one in others)
    return Suspect("pairs", name, site, site.lines, reason, extent, beside=beside, is_lost=is_lost)


def _lanes_of(node: Node, pairs: Array) -> Iterator[tuple[Array, Array]]:
    """Of [batch, heads, rows, keys] the part that is of the row, or key, of each lane of a sum; and what it sums."""
    found = node.lanes.of_sum() if node.lanes is not None else None
    if found is None:
        return
    kept, batch, index, counts = found
    for lane in np.flatnonzero((batch >= 0) & (index >= 0)):
        part = pairs[batch[lane], :, index[lane], :] if kept == "m" else pairs[batch[lane], :, :, index[lane]]
        yield part, counts[lane] > 0


def nothing_summed(run: FollowedRun) -> Iterator[Suspect]:
    """Results into which nothing was summed: the loop that makes them never runs."""
    filled, total = {one.home for one in run.flow.stores}, int(run.roles.valid.sum())
    # What could not be followed may have been loaded.
    for home, site in run.flow.empty.items() if not run.flow.failures else ():
        name = run.outcome.storages.get(home, "")
        if name in run.wrong and home not in filled:
            reason = "what is stored comes from no load"
            yield Suspect("pairs", name, site, site.lines, reason, share(total, total, "pair"))


def are_partial(run: FollowedRun, nodes: Sequence[Node]) -> bool:
    """Whether what these were stored into does not hold all pairs: right as far as it was summed."""
    homes = {stored.home for stored in run.flow.stores if stored.node in nodes} & run.visits.keys()
    return any(bool((run.roles.valid & (run.visits[home] == 0)).any()) for home in homes)


def partly(node: Node, extent: str) -> Suspect:
    """What is stored is right as far as it was summed, and does not hold all that it should."""
    assert node.role is not None
    site, *_ = summing(node)
    reason = f"{node.role.formula} is stored before all keys are in it"
    return Suspect("pairs", node.name, site, site.lines, reason, extent)


def summing(node: Node) -> tuple[Site, ...]:
    """The dots that a result was summed by, the last first; one that sums nothing itself stands for them."""

    def made_of(summed: Node) -> Sequence[Node]:
        if summed.site.operation == "reduce":
            return ()
        # What a dot is added to, where that is an operand of its own, was summed by others.
        return summed.operands[2:] if summed.site.operation == "dot" else summed.operands

    found = dict.fromkeys(one.site for one in behind([node], made_of) if one.site.operation in ("dot", "reduce"))
    dots = tuple(site for site in found if site.operation == "dot")
    return dots or tuple(found) or (node.site,)


# --- what is stored nowhere


def never_stored(run: FollowedRun) -> Iterator[Suspect]:
    """Results of which some rows or keys, heads or batches are stored by no program: too few of them are launched, or
    two take the same.

    Nothing of kernels that store a mere number, which is right where no pair of a row and a key is seen; nor of scores,
    which are stored where they are worked on.
    """
    flow, by_name = run.flow, dict[str, list[int]]()
    of_numbers = {site.kernel for site in flow.empty.values()}
    for number, source in enumerate(flow.sources):
        is_store = source.site.operation != "load" and source.site.kernel not in of_numbers
        if is_store and title(source.tensor) in run.wrong and not {*"mn"} <= {*flow.filled[number][0]}:
            by_name.setdefault(title(source.tensor), []).append(number)
    for name, numbers in by_name.items():
        letters, site = flow.filled[numbers[0]][0], flow.sources[numbers[0]].site
        filled = [here for axes, here in map(flow.filled.__getitem__, numbers) if axes == letters]
        needed = _needed(run, letters)
        never = needed & ~np.logical_or.reduce(filled)
        if never.any():
            word, many = AXIS_WORDS[letters[-1]], int(never.sum())
            first = zip(letters, np.argwhere(never)[0], strict=True)
            place = ", ".join(f"{AXIS_WORDS[letter]} {at}" for letter, at in first)
            reason = f"no program stores {plural(many, word)} of {name}, the first at {place}"
            extent = share(many, int(needed.sum()), word)
            beside = tuple(flow.lines[line] for line in _placing(run, numbers))
            yield Suspect("unstored", name, site, site.lines, reason, extent, beside=beside)


def _needed(run: FollowedRun, letters: str) -> Array:
    """[of these axes] bool: where something is that some row sees some key for."""
    kept = letters.replace("g", "h")
    needed = run.roles.valid.any(tuple(at for at, letter in enumerate("bhmn") if letter not in kept))
    if "g" not in letters:
        return needed
    axis, shape = letters.index("g"), [run.flow.sizes[letter] for letter in letters]
    return needed.reshape(*shape[: axis + 1], -1, *shape[axis + 1 :]).any(axis + 1)


def _placing(run: FollowedRun, numbers: Sequence[int]) -> list[int]:
    """The lines behind all addresses of a kernel that leave something out; last those behind others as well."""
    flow, kernel = run.flow, run.flow.sources[numbers[0]].site.kernel
    short, others = [flow.slices[number] for number in numbers], frozenset[int]()
    for number, (letters, filled) in flow.filled.items():
        if letters and number not in flow.derived and flow.sources[number].site.kernel == kernel:
            if (_needed(run, letters) & ~filled).any():
                short.append(flow.slices[number])
            else:
                others |= flow.slices[number]
    return sorted(frozenset.intersection(*short), key=lambda line: (line in others, -line))
