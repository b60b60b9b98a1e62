"""Sums of an input with what is made of nothing that was loaded: its scores were lost on the way."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ...model.intermediates import PRODUCTS
from ...runtime.interpreter.dataflow import Node, Site, behind
from ...runtime.interpreter.memory.findings import places
from ..follow import FollowedRun
from ..statements import made_by
from .misread import is_loaded
from .suspect import Chain, Suspect, share

# What an input is to be summed with.
_PARTNERS = {of.other: of.matrix for of in PRODUCTS.values()}


def unmade(run: FollowedRun) -> Iterator[Suspect]:
    """The dots of one input alone that make wrong results, where no others do."""
    stored = [] if run.flow.failures else [one.node for one in run.stores]
    nodes = behind(stored, lambda node: node.operands if node.site.operation != "dot" else ())
    dots: dict[Site, list[Node]] = {}
    for node in nodes:
        if node.site.operation == "dot":
            dots.setdefault(node.site, []).append(node)
    for of_site in dots.values():
        if not all(len(one.operands) == 1 and is_loaded(one.operands[0]) for one in of_site):
            return
    for site, of_site in dots.items():
        name, extent = of_site[0].operands[0].name, share(len(of_site), len(of_site), "tile")
        if name in _PARTNERS:
            reason = f"{name} is summed with a value that comes from no load"
            yield Suspect("value", _PARTNERS[name], site, site.lines, reason, extent, beside=tuple(_lost(run, site)))


def _lost(run: FollowedRun, site: Site) -> Iterator[Chain]:
    """The lines that make what a line sums, since the last that made something known."""
    *calls, place = places(site.lines)
    made = [places(one.lines)[-1] for one in run.right if one.operation != "load"]
    since = max((one.line for one in made if one.file == place.file and one.line < place.line), default=0)
    for at in made_by(place.file, place.line):
        if at > since:
            yield (*calls, replace(place, line=at))
