"""Lengths that a target should have refused: one cause in place of many."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ..model.number import LAMBDA
from ..model.report import Diagnosis, Where
from ..numerics.evidence import LayoutRun
from .lines import of_strays
from .why import Reasons

# Where as many lines lack a mask, it is no slip that an edit could mend: the kernel was written without.
_FEW = 3
# What leaves a tensor, or meets another program's there; and what is seen of the same in the elements.
_MISREAD = ("race", "outside", "load", "store", "masked")


def with_length(reasons: Reasons, first: LayoutRun, right_at: Callable[[LayoutRun], str]) -> Reasons:
    """The reasons, where another length is right in the first layout: then nothing else is wrong with it there.

    Args:
        right_at: given the first run, runs the target at other lengths, and says at which it is right; "" at none.
    """
    explained = reasons.predicted and reasons.causes
    findings = first.measured.comparison.findings.values() if first.measured is not None else ()
    # No more than a coarser arithmetic errs, which other values at another length may not show.
    is_slight = all(finding.max_ratio <= LAMBDA for finding in findings)
    if ((explained or is_slight) and not first.memory) or not (words := right_at(first)):
        return reasons
    here = {found.fault for found in of_strays((first.layout, each) for each in first.memory)}
    here |= {fault for fault, shown in reasons.shown.items() if here and first.layout in shown}
    kinds = () if explained else _MISREAD
    merged = [found for found in reasons.diagnoses if found.fault in here and found.kind in kinds]
    if not merged:
        said = "it takes multiples of a block, and does not refuse other lengths"
        return replace(reasons, known=(f"{first.layout}, it is right at {words}: {said}", *reasons.known))
    summary = f"lengths that end inside a block are wrong: in {first.layout} it is right at {words}"
    fix = "mask its loads and stores by the length, or refuse other lengths before the first launch"
    layouts, lines = list[str](), dict[tuple[str, int], Where]()
    for found in merged:
        layouts += reasons.shown.get(found.fault, (first.layout,))
        lines |= {(at.file, at.line): at for at in found.where}
    where = tuple(lines.values())
    cause = Diagnosis("tail/length", "M3", summary, 1.0, where=where, fix=fix, seen="seen while it ran")
    led = reasons.led_by(cause, merged, dict.fromkeys(layouts))
    return replace(led, is_beyond_edits=len(lines) > _FEW and not any(found.also for found in led.diagnoses))
