"""Results that lack something: pairs of a row and a key that are not summed, and what no program stores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ...frontends.triton.interpreter.dataflow import Node, Site, behind
from ...inputs.memory import Array
from ...model.intermediates import AXIS_WORDS, title
from ...model.number import plural
from ..follow import FollowedRun
from .diagnoses import Suspect


def pairs(run: FollowedRun) -> Iterator[Suspect]:
    """Results that some pairs of a row and a key are left out of."""
    of_wrong = {stored.home for stored in run.stores}
    for home, visits in run.visits.items():
        stores = [stored for stored in run.flow.stores if stored.home == home]
        missing = run.roles.valid & (visits == 0)
        if home in of_wrong and missing.any() and (name := run.result_of(stores[0])) in run.wrong:
            yield _left_out(run, name, [stored.node for stored in stores], missing)


def _left_out(run: FollowedRun, name: str, stored: Sequence[Node], missing: Array) -> Suspect:
    """The dots that sum a result, first those of a store that something is missing in."""
    lacking = (node for node in stored if any(part.any() for part, _ in _lanes_of(node, missing)))
    site, *others = summing(next(lacking, stored[0]))
    multiplied = np.zeros_like(missing)
    for node in run.flow.nodes:
        for part, is_summed in _lanes_of(node, multiplied) if node.site in (site, *others) else ():
            part[is_summed] = True
    is_lost = bool((missing & multiplied).any())
    reason = left_out(missing) + ("" if is_lost else ", and no product uses them")
    beside = tuple(other.lines for other in others)
    return Suspect("pairs", name, site, site.lines, reason, beside=beside, is_lost=is_lost)


def left_out(missing: Array) -> str:
    """What pairs are missing, of [batch, heads, rows, keys]."""
    b, h, m, n = np.argwhere(missing)[0]
    count = f"{int(missing.sum()):,} pairs of a row and a key are left out"
    return f"{count}, the first of row {m} and key {n} (batch {b}, head {h})"


def _lanes_of(node: Node, pairs: Array) -> Iterator[tuple[Array, Array]]:
    """Of [batch, heads, rows, keys] the part that is of the row, or key, of each lane of a sum; and what it sums."""
    lanes = node.lanes.of_sum() if node.lanes is not None else None
    if lanes is not None:
        kept, batch, index, counts = lanes
        for lane in np.flatnonzero((batch >= 0) & (index >= 0)):
            of_batch = pairs[batch[lane]]
            yield of_batch[:, index[lane]] if kept == "m" else of_batch[:, :, index[lane]], counts[lane] > 0


def nothing_summed(run: FollowedRun) -> Iterator[Suspect]:
    """Results into which nothing was summed: the loop that makes them never runs."""
    filled = {stored.home for stored in run.flow.stores}
    for home, site in run.flow.empty.items():
        name = run.outcome.storages.get(home, "")
        # What could not be followed may have been loaded.
        if name in run.wrong and home not in filled and not run.flow.failures:
            yield Suspect("pairs", name, site, site.lines, "what is stored comes from no load")


def are_partial(run: FollowedRun, nodes: Sequence[Node]) -> bool:
    """Whether what these were stored into does not hold all pairs: right as far as it was summed."""
    homes = {stored.home for stored in run.flow.stores if stored.node in nodes} & run.visits.keys()
    return any((run.roles.valid & (run.visits[home] == 0)).any() for home in homes)


def summing(node: Node) -> tuple[Site, ...]:
    """The dots that a result was summed by, the last first; one that sums nothing itself stands for them."""

    def made_of(summed: Node) -> Sequence[Node]:
        if summed.site.operation == "reduce":
            return ()
        # What a dot is added to, where that is an operand of its own, was summed by others.
        return summed.operands[2:] if summed.site.operation == "dot" else summed.operands

    sites = dict.fromkeys(made.site for made in behind([node], made_of))
    dots = [site for site in sites if site.operation == "dot"]
    reductions = [site for site in sites if site.operation == "reduce"]
    return tuple(dots or reductions or [node.site])


# --- what is stored nowhere


def never_stored(run: FollowedRun) -> Iterator[Suspect]:
    """Results of which some rows or keys, heads or batches are stored by no program: too few of them are launched, or
    two take the same.

    Nothing of kernels that store a mere number, which is right where no pair of a row and a key is seen; nor of scores,
    which are stored where they are worked on.
    """
    flow, of_numbers = run.flow, {site.kernel for site in run.flow.empty.values()}
    by_name: dict[str, list[int]] = {}
    for number, access in enumerate(flow.sources):
        name, is_load = title(access.tensor), access.site.operation == "load"
        if is_load or name not in run.wrong or access.site.kernel in of_numbers:
            continue
        if not {"m", "n"} <= {*flow.filled[number][0]}:
            by_name.setdefault(name, []).append(number)
    for name, numbers in by_name.items():
        letters, _ = flow.filled[numbers[0]]
        never = _needed(run, letters)
        for number in numbers:
            axes, filled = flow.filled[number]
            never = never & ~filled if axes == letters else never
        if never.any():
            first = zip(letters, np.argwhere(never)[0], strict=True)
            place = ", ".join(f"{AXIS_WORDS[letter]} {at}" for letter, at in first)
            many = plural(int(never.sum()), AXIS_WORDS[letters[-1]])
            reason = f"no program stores {many} of {name}, the first at {place}"
            site = flow.sources[numbers[0]].site
            beside = tuple(flow.lines[line] for line in _placing(run, numbers))
            yield Suspect("unstored", name, site, site.lines, reason, beside=beside)


def _needed(run: FollowedRun, letters: str) -> Array:
    """[of these axes] bool: where something is that some row sees some key for."""
    kept = letters.replace("g", "h")
    needed = run.roles.valid.any(tuple(at for at, letter in enumerate("bhmn") if letter not in kept))
    if "g" not in letters:
        return needed
    axis, shape = letters.index("g"), [run.flow.sizes[letter] for letter in letters]
    return needed.reshape(*shape[: axis + 1], -1, *shape[axis + 1 :]).any(axis + 1)


def _placing(run: FollowedRun, numbers: Sequence[int]) -> list[int]:
    """The lines behind all addresses of a kernel that leave something out, the last first."""
    flow, kernel = run.flow, run.flow.sources[numbers[0]].site.kernel
    shared = frozenset.intersection(*(flow.slices[number] for number in numbers))
    for number, (letters, filled) in flow.filled.items():
        is_own = letters and number not in flow.derived and flow.sources[number].site.kernel == kernel
        if is_own and (_needed(run, letters) & ~filled).any():
            shared &= flow.slices[number]
    return sorted(shared, reverse=True)
