"""Results that lack pairs of a row and a key, or that no program stores."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from operator import attrgetter

import numpy as np

from ...frontends.triton.interpreter.dataflow import AccessLine, Node, Site, behind
from ...inputs.memory import Array
from ...model.intermediates import AXIS_WORDS, title
from ...model.number import plural
from ..follow import FollowedRun
from .diagnoses import Suspect

_home = attrgetter("home")


def pairs(run: FollowedRun) -> Iterator[Suspect]:
    """Results that some pairs of a row and a key are left out of."""
    of_wrong = {*map(_home, run.stores)}
    for home in filter(of_wrong.__contains__, run.visits):
        stores = [stored for stored in run.flow.stores if stored.home == home]
        missing, name = _missing(run, home), run.result_of(stores[0])
        if missing.any() and name in run.wrong:
            yield _left_out(run, name, [*map(attrgetter("node"), stores)], missing)


def _missing(run: FollowedRun, home: int) -> Array:
    """[B, H, M, N] bool: the pairs that are not in what was stored."""
    return run.roles.valid & (run.visits[home] == 0)


def _left_out(run: FollowedRun, name: str, stored: Sequence[Node], missing: Array) -> Suspect:
    lacking = (node for node in stored for part, _ in _lanes_of(node, missing) if part.any())
    sites, multiplied = summing(next(lacking, stored[0])), np.zeros_like(missing)
    for node in run.flow.nodes:
        for part, is_summed in _lanes_of(node, multiplied) if node.site in sites else ():
            part[is_summed] = True
    is_lost = bool((missing & multiplied).any())
    reason = left_out(missing) + ("" if is_lost else ", and no product uses them")
    lines, *beside = map(attrgetter("lines"), sites)
    return Suspect("pairs", name, sites[0], lines, reason, beside=beside, is_lost=is_lost)


def left_out(missing: Array) -> str:
    """What pairs are missing, of [batch, heads, rows, keys]."""
    b, h, m, n = np.argwhere(missing)[0]
    count = f"{int(missing.sum()):,} pairs of a row and a key are left out"
    return f"{count}, the first of row {m} and key {n} (batch {b}, head {h})"


def _lanes_of(node: Node, pairs: Array) -> Iterator[tuple[Array, Array]]:
    lanes = node.lanes.of_sum()
    if lanes is not None:
        kept, batch, index, counts = lanes
        pairs = pairs if kept == "m" else pairs.swapaxes(2, 3)
        for lane in np.flatnonzero((batch >= 0) & (index >= 0)):
            yield pairs[batch[lane], :, index[lane]], counts[lane] > 0


def nothing_summed(run: FollowedRun) -> Iterator[Suspect]:
    """Results into which nothing was summed."""
    filled = {*map(_home, run.flow.stores)}
    for home, site in run.flow.empty.items():
        name = run.outcome.storages.get(home, "")
        if name in run.wrong and home not in filled and not run.flow.failures:
            yield Suspect("pairs", name, site, site.lines, "what is stored comes from no load")


def are_partial(run: FollowedRun, nodes: Sequence[Node]) -> bool:
    """Whether what these were stored into does not hold all pairs."""
    homes = {stored.home for stored in run.flow.stores if stored.node in nodes}
    return any(map(np.any, map(partial(_missing, run), homes & run.visits.keys())))


def summing(node: Node) -> tuple[Site, ...]:
    """The dots that summed a result, the last first; else reductions, or what made it."""

    def made_of(summed: Node) -> Sequence[Node]:
        if summed.site.operation == "reduce":
            return ()
        # What a dot is added to, where that is an operand of its own, was summed by others.
        return summed.operands[2:] if summed.site.operation == "dot" else summed.operands

    sites = dict.fromkeys(map(attrgetter("site"), behind([node], made_of)))
    for operation in ("dot", "reduce"):
        found = tuple(site for site in sites if site.operation == operation)
        if found:
            return found
    return (node.site,)


# --- what is stored nowhere


def never_stored(run: FollowedRun) -> Iterator[Suspect]:
    """Results of which no program stores some rows or keys, heads or batches."""
    flow, of_numbers = run.flow, {site.kernel for site in run.flow.empty.values()}
    by_name = defaultdict[str, list[AccessLine]](list)
    for access in flow.sources:
        name = title(access.tensor)
        # A mere number is right where no pair is seen; scores are stored where they are worked on.
        if access.is_load or name not in run.wrong or access.site.kernel in of_numbers:
            continue
        if not {"m", "n"} <= {*access.letters}:
            by_name[name].append(access)
    for name, stores in by_name.items():
        site, letters = stores[0].site, stores[0].letters
        never = _needed(run, letters)
        for store in stores:
            if store.letters == letters:
                never &= ~store.filled
        if never.any():
            first = zip(letters, np.argwhere(never)[0], strict=True)
            place = ", ".join(f"{AXIS_WORDS[letter]} {at}" for letter, at in first)
            many = plural(int(never.sum()), AXIS_WORDS[letters[-1]])
            reason = f"no program stores {many} of {name}, the first at {place}"
            beside = tuple(map(flow.lines.__getitem__, _placing(run, stores)))
            yield Suspect("unstored", name, site, site.lines, reason, beside=beside)


def _needed(run: FollowedRun, letters: str) -> Array:
    """[of these axes] bool: where a row sees a key."""
    valid, kept = run.roles.valid, letters.replace("g", "h")
    needed = valid.any(tuple(at for at, letter in enumerate("bhmn") if letter not in kept))
    if "g" not in letters:
        return needed
    axis = letters.index("g")
    shape = (*needed.shape[:axis], run.flow.sizes["g"], -1, *needed.shape[axis + 1 :])
    return needed.reshape(shape).any(axis + 1)


def _placing(run: FollowedRun, stores: Sequence[AccessLine]) -> list[int]:
    shared = frozenset.intersection(*map(attrgetter("behind"), stores))
    for source in run.flow.sources:
        is_own = source.site.kernel == stores[0].site.kernel and not source.is_derived
        if is_own and source.letters and (_needed(run, source.letters) & ~source.filled).any():
            shared &= source.behind
    return sorted(shared, reverse=True)
