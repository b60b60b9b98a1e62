"""Programs that belong to no head: along an axis of the grid that has one for each head of every batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ...model.memory_finding import OUTSIDE
from ...runtime.interpreter.dataflow import Site
from ..follow import FollowedRun
from ..statements import numbered
from .suspect import Suspect, share


def beyond_heads(run: FollowedRun) -> Iterator[Suspect]:
    """The kernels of which all programs from some head or batch on, and no others, leave every tensor that they leave.

    Heads and batches are then in one axis of the grid, and the kernel takes them apart nowhere. Where all is contiguous
    the next head after a batch's last one is the next batch's first.
    """
    memory, sizes = run.flow.memory, run.flow.sizes
    findings = [one for one in memory.findings if one.kind == OUTSIDE] if memory else []
    for kernel in dict.fromkeys(one.kernel for one in findings):
        outside = [one for one in findings if one.kernel == kernel]
        found, tensors = outside[0], {one.tensor for one in outside}
        axis, first, many = found.beyond or (0, 0, 0)
        heads = [each for each in (sizes["h"], sizes["g"]) if each > 1 and many == sizes["b"] * each]
        # A program for each head of every batch, and those leave it that are behind the first batch, or its heads.
        is_of_heads = sizes["b"] > 1 and any(first in (sizes["b"], each) for each in heads)
        if len(tensors) > 1 and len({one.beyond for one in outside}) == 1 and is_of_heads:
            site, place = Site(kernel, found.places, found.access, 0), found.place
            words = " and ".join(sorted(tensors))
            reason = f"only the programs from {first} on, of {many} along axis {axis}, go outside {words}"
            asked = tuple((replace(place, line=line),) for line in numbered(place.file, place.line, axis))
            yield Suspect(
                "grid", kernel, site, found.places, reason, share(many - first, many, "program"), beside=asked
            )
