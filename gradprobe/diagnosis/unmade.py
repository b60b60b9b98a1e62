"""Sums of an input with what is made of nothing that was loaded: its scores were lost on the way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ..model.intermediates import PRODUCTS
from ..runtime.interpreter.dataflow import Node, Site
from ..runtime.interpreter.memory.findings import Line, places
from .follow import Followed
from .misread import is_loaded
from .statements import made_by
from .stores import wrong_stores
from .suspect import Suspect, share

# What an input is to be summed with.
_PARTNERS = {of.other: of.matrix for of in PRODUCTS.values()}


def unmade(run: Followed, wrong: Sequence[str]) -> Iterator[Suspect]:
    """The dots of one input alone that make wrong results, where no others do."""
    dots = [] if run.flow.failures else [*_dots(run, wrong)]
    if not all(len(one.operands) == 1 and is_loaded(one.operands[0]) for one in dots):
        return
    sites: dict[Site, list[Node]] = {}
    for one in dots:
        sites.setdefault(one.site, []).append(one)
    for site, (first, *others) in sites.items():
        role = first.operands[0].role
        if role is not None and role.name in _PARTNERS:
            reason = f"{role.name} is summed with a value that comes from no load"
            extent = share(1 + len(others), 1 + len(others), "tile")
            beside = tuple(_lost(run, site))
            yield Suspect("value", _PARTNERS[role.name], site, site.lines, reason, extent, beside=beside)


def _dots(run: Followed, wrong: Sequence[str]) -> Iterator[Node]:
    """The dots that wrong results are made by, the last ones."""
    pending, seen = [one.node for one in wrong_stores(run, wrong)], set[int]()
    while pending:
        node = pending.pop()
        if node.number in seen:
            continue
        seen.add(node.number)
        if node.site.operation == "dot":
            yield node
        else:
            pending += node.operands


def _lost(run: Followed, site: Site) -> Iterator[tuple[Line, ...]]:
    """The lines that make what a line sums, since the last that made something known."""
    *calls, place = places(site.lines)
    known = {one.site for one in run.flow.nodes if one.role is not None and one.role.is_known}
    made = [places(one.lines)[-1] for one in known if one.operation != "load"]
    since = max((one.line for one in made if one.file == place.file and one.line < place.line), default=0)
    for at in made_by(place.file, place.line):
        if at > since:
            yield (*calls, replace(place, line=at))
