"""Programs that belong to no head: along an axis of the grid that has one for each head of every batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..model.memory import OUTSIDE
from ..runtime.interpreter.dataflow import Flow, Site
from ..runtime.interpreter.memory.findings import AccessFinding
from .statements import numbered
from .suspect import Suspect, share


def beyond_heads(flow: Flow) -> Iterator[Suspect]:
    """The kernels of which all programs from some head or batch on, and no others, leave every tensor that they leave.

    Heads and batches are then in one axis of the grid, and the kernel takes them apart nowhere. Where all is contiguous
    the next head after a batch's last one is the next batch's first.
    """
    findings = [one for one in flow.memory.findings if one.kind == OUTSIDE] if flow.memory else []
    for kernel in dict.fromkeys(one.kernel for one in findings):
        outside = [one for one in findings if one.kernel == kernel]
        first, tensors = outside[0], {one.tensor for one in outside}
        if len(tensors) > 1 and len({one.beyond for one in outside}) == 1 and _is_of_heads(flow, first):
            yield _suspect(first, " and ".join(sorted(tensors)))


def _is_of_heads(flow: Flow, found: AccessFinding) -> bool:
    """Whether it is along an axis with a program for each head of every batch, from the second batch or head on."""
    batches, heads = flow.sizes["b"], (flow.sizes["h"], flow.sizes["g"])
    _, first, many = found.beyond or (0, 0, 0)
    return batches > 1 and any(many == batches * each and first in (batches, each) for each in heads if each > 1)


def _suspect(found: AccessFinding, words: str) -> Suspect:
    axis, first, many = found.beyond or (0, 0, 0)
    site, extent = Site(found.kernel, found.places, found.access, 0), share(many - first, many, "program")
    reason = f"only the programs from {first} on, of {many} along axis {axis}, go outside {words}"
    asked = numbered(found.place.file, found.place.line, axis)
    beside = tuple((replace(found.place, line=line),) for line in asked)
    return Suspect("grid", found.kernel, site, found.places, reason, extent, beside=beside)
