"""What is stored of the wrong results: NaN, and what is right but for a constant."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import takewhile

from ..model.intermediates import PRODUCTS, unscaled
from ..runtime.interpreter.dataflow import Node, Role, Site, StoredTile
from .factors import STORED
from .follow import Followed
from .misread import is_loaded
from .suspect import Suspect, share


def wrong_stores(run: Followed, wrong: Sequence[str]) -> list[StoredTile]:
    """The stores of what is wrong. Where host code made a result of what kernels stored, all that has no name."""
    storages = run.outcome.storages
    names = {storages.get(home, "") for home in (*(one.home for one in run.flow.stores), *run.flow.empty)}
    is_hidden = not names >= set(wrong)
    wanted = {*wrong, *([""] if is_hidden else [])}
    return [one for one in run.flow.stores if storages.get(one.home, "") in wanted]


def not_numbers(run: Followed, wrong: Sequence[str]) -> Iterator[Suspect]:
    """The operations that make NaN of numbers, on the way to a result that holds NaN."""
    pending, seen = [one.node for one in wrong_stores(run, wrong) if one.has_nan], set[int]()
    found, tiles = Counter[Site](), Counter(node.site for node in run.flow.nodes)
    while pending:
        node = pending.pop()
        if node.number in seen:
            continue
        seen.add(node.number)
        behind = [operand for operand in node.operands if operand.has_nan]
        pending += behind
        made_of_wrong = any(one.role is not None and _is_nothing(one.role) for one in node.operands)
        found[node.site] += not (behind or made_of_wrong or node.site.operation == "load")
    for site, count in found.items():
        if count:
            extent = share(count, tiles[site], "tile")
            yield Suspect("value", "NaN", site, site.lines, "it turns numbers into NaN", extent)


def other_factors(run: Followed, wrong: Sequence[str], *, of_host: bool = False) -> Iterator[Suspect]:
    """Results that are stored as what they are, times another constant.

    Args:
        of_host: whether to look at what host code makes a result of too. It may multiply that yet, so none is sure.
    """
    found: dict[Site, list[tuple[str, str]]] = {}
    nodes: dict[Site, Node] = {}
    for stored in run.flow.stores:
        role = stored.node.role
        name = result_of(run, stored) if of_host else run.outcome.storages.get(stored.home, "")
        if name not in wrong or name not in STORED or role is None or not role.is_known or role.formula == STORED[name]:
            continue
        found.setdefault(stored.site, []).append((name, role.formula))
        nodes.setdefault(stored.site, stored.node)
    tiles = Counter(stored.site for stored in run.flow.stores)
    for site, ((name, words), *others) in found.items():
        reason, extent = (
            f"stores {words} as {name}; should store {STORED[name]}",
            share(1 + len(others), tiles[site], "tile"),
        )
        beside = tuple(dict.fromkeys(one.site.lines for one in _made_of(nodes[site])))
        yield Suspect("stored", name, site, site.lines[:1], reason, extent, is_sure=not of_host, beside=beside)


def _made_of(node: Node) -> Iterator[Node]:
    """What a stored sum was made by, where a factor may be missing: what multiplies it, the dot, the scores in that."""
    way = list(takewhile(lambda one: one.site.operation != "dot", _behind(node)))
    yield from (one for one in way if one.site.operation == "fmul" and one.role is not None and one.role.is_known)
    summed = [one for one in _behind(node) if one.site.operation == "dot"][:1]
    yield from summed
    yield from (one for dot in summed for one in dot.operands[:2] if not is_loaded(one))


def _behind(node: Node) -> Iterator[Node]:
    pending, seen = [node], set[int]()
    while pending:
        one = pending.pop(0)
        if one.number not in seen:
            seen.add(one.number)
            yield one
            pending += one.operands


def _is_nothing(role: Role) -> bool:
    """Whether a value that was compared is nothing that is known: it is wrong before it makes NaN."""
    return not role.name and not role.is_by_row


# What a store of it is the result of.
_RESULTS = {unscaled(name): name for name in PRODUCTS}


def result_of(run: Followed, stored: StoredTile) -> str:
    """The result that a store is of: of scratch that host code makes one of, by what is stored; "" if unknown."""
    role = stored.node.role
    return run.outcome.storages.get(stored.home, "") or _RESULTS.get(role.name if role is not None else "", "")
