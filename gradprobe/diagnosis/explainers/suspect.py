"""A suspect: one operation of a failing run that goes wrong although what it works on is right."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ...frontends.triton.interpreter.dataflow import Line, Site
from ...model.number import plural

Chain = tuple[Line, ...]
"""A line of a kernel, then those in the functions that it called to get there."""
# The class of sums that lose what was summed: it is overwritten, or added twice.
LOST = "ACC"
# The note of lines that stand beside a sum: each may be where it leaves something out.
LOOP = "the loop"


@dataclass(frozen=True)
class Suspect:
    """One operation that goes wrong although what it works on is right."""

    kind: str
    """load, store: it reads, or writes, other elements than it should; masked: it leaves out what is needed; value: its
    operands are right and its result is not; stored: it is right but for a constant; pairs: rows and keys are left out
    of what is stored; unstored: no program stores some of a result.
    """
    name: str
    """The intermediate that is wrong there, or the tensor that is misread; "" where it is not known."""
    site: Site
    lines: Chain
    """Those of the site up to the one that is the fault: of a helper that is right elsewhere, its caller's."""
    reason: str
    """One sentence."""
    extent: str
    """How often of how often it was seen to: "4 of 4 tiles", or of the times that it meets another."""
    inputs: str = "its inputs are right"
    """Of a value, what is right there, or by how much it is off."""
    is_sure: bool = True
    """Whether it goes wrong whenever it runs, or what is made of it is wrong too."""
    beside: Sequence[Chain] = ()
    """Where that is made which enters there: of an access, its address alone; of a value, what was compared with
    nothing, such as an offset, a term or a mask; of pairs, the other dots that sum them."""
    used: Sequence[Chain] = ()
    """Where it is worked on as if it were otherwise, which may be the fault as well: the dots that a tile lies across
    in, the mask that is right for other keys."""
    letter: str = ""
    """Of a load or a store the axis in which it reaches other indices than it should."""
    reached: tuple[tuple[int, int], ...] = ()
    """These indices: the one that it should reach, and the one that it does, below 0 outside the tensor."""
    is_open: bool = False
    """Whether it is right where rows see keys, not masked where they do not, and summed over."""
    is_lost: bool = False
    """Of pairs, whether products of them were made, so that what was summed is lost."""
    is_spoilt: bool = False
    """Of a value, whether it is right before the operation, which should leave it as it is."""


def share(count: int, total: int, noun: str) -> str:
    return f"{count:,} of {plural(total, noun)}"


def blamed(site: Site, right: Iterable[Site]) -> Chain:
    """The lines of a site without the innermost ones that are right where something else calls them."""
    same = [one for one in right if (one.operation, one.instruction) == (site.operation, site.instruction)]
    elsewhere = {other.lines[-depth:] for other in same for depth in range(1, len(other.lines) + 1)}
    lines = site.lines
    for depth in range(1, len(lines)):
        if lines[-depth:] not in elsewhere:
            return lines[: len(lines) - depth + 1]
    return lines[:1]
