"""What is stored of the wrong results: NaN, and what is right but for a constant."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import takewhile

from ...runtime.interpreter.dataflow import Node, Site, behind
from ..follow import STORED, FollowedRun
from .misread import is_loaded
from .suspect import Suspect, share


def not_numbers(run: FollowedRun) -> Iterator[Suspect]:
    """The operations that make NaN of numbers, on the way to a result that holds NaN."""
    found = Counter[Site]()
    stored = [one.node for one in run.stores if one.has_nan]
    for node in behind(stored, lambda node: [one for one in node.operands if one.has_nan]):
        is_made_here = node.site.operation != "load" and not any(one.has_nan for one in node.operands)
        # What was compared and is nothing that is known is wrong before it makes NaN.
        compared = [one.role for one in node.operands if one.role is not None]
        found[node.site] += is_made_here and all(role.name or role.is_by_row for role in compared)
    for site, count in found.items():
        if count:
            extent = share(count, run.tiles[site], "tile")
            yield Suspect("value", "NaN", site, site.lines, "it turns numbers into NaN", extent)


def other_factors(run: FollowedRun, *, is_of_host: bool = False) -> Iterator[Suspect]:
    """Results that are stored as what they are, times another constant.

    Args:
        is_of_host: whether to look at what host code makes a result of too. It may multiply that yet, so none is sure.
    """
    found: dict[Site, list[tuple[str, Node]]] = {}
    for stored in run.flow.stores:
        role = stored.node.role
        name = run.result_of(stored) if is_of_host else run.outcome.storages.get(stored.home, "")
        if name in run.wrong and name in STORED and role and role.is_known and role.formula != STORED[name]:
            found.setdefault(stored.site, []).append((name, stored.node))
    tiles = Counter(stored.site for stored in run.flow.stores)
    for site, ((name, node), *others) in found.items():
        assert node.role is not None
        reason = f"stores {node.role.formula} as {name}; should store {STORED[name]}"
        extent = share(1 + len(others), tiles[site], "tile")
        beside = tuple(dict.fromkeys(one.site.lines for one in _made_of(node)))
        yield Suspect("stored", name, site, site.lines[:1], reason, extent, is_sure=not is_of_host, beside=beside)


def _made_of(node: Node) -> Iterator[Node]:
    """What a stored sum was made by, where a factor may be missing: what multiplies it, the dot, the scores in that."""
    way = takewhile(lambda one: one.site.operation != "dot", behind([node]))
    yield from (one for one in way if one.site.operation == "fmul" and one.is_known)
    for dot in [one for one in behind([node]) if one.site.operation == "dot"][:1]:
        yield dot
        yield from (one for one in dot.operands[:2] if not is_loaded(one))
