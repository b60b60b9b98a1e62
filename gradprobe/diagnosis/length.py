"""A target that is right in whole blocks alone: one cause in place of all that it does to memory at other lengths."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ..model.number import LAMBDA
from ..model.report import Diagnosis
from ..numerics.evidence import LayoutRun
from .lines import of_strays
from .why import Reasons

FAULT = "tail/length"
# Where as many lines lack a mask, it is no slip that an edit could mend: the kernel was written without.
_FEW = 3
# How many of the accesses are told as evidence.
_TOLD = 2
# What leaves a tensor, or meets another program's there; and what is seen of the same in the elements.
_OF_MEMORY, _OF_ELEMENTS = ("race/", "outside/"), ("load/", "store/", "masked/")
_FIX = "mask its loads and stores by the length, or refuse other lengths before the first launch"


def with_length(reasons: Reasons, first: LayoutRun, right_at: Callable[[LayoutRun], str]) -> Reasons:
    """The reasons, where another length is right in the first layout: then nothing else is wrong with it there.

    Args:
        right_at: given the first run, runs the target at other lengths, and says at which it is right; "" at none.
    """
    explained = reasons.predicted and reasons.causes
    is_told = (explained or _is_slight(first)) and not first.memory
    if is_told or not (words := right_at(first)):
        return reasons
    here = {one.fault for one in of_strays((first.layout, one) for one in first.memory)}
    here |= {fault for fault, shown in reasons.shown.items() if here and first.layout in shown}
    kinds = () if explained else (*_OF_MEMORY, *_OF_ELEMENTS)
    merged = [one for one in reasons.diagnoses if one.fault in here and one.fault.startswith(kinds)]
    if not merged:
        said = "it takes multiples of a block, and does not refuse other lengths"
        return replace(reasons, known=(f"{first.layout}, it is right at {words}: {said}", *reasons.known))
    lines = {(where.file, where.line): where for one in merged for where in one.where}
    told = tuple(one.summary for one in merged[:_TOLD])
    summary = f"lengths that end inside a block are wrong: in {first.layout} it is right at {words}"
    cause = Diagnosis(FAULT, "M3", summary, 1.0, told, tuple(lines.values()), _FIX, seen="seen while it ran")
    layouts = dict.fromkeys(layout for one in merged for layout in reasons.shown.get(one.fault, (first.layout,)))
    led = reasons.led_by(cause, merged, layouts)
    return replace(led, is_beyond_edits=len(lines) > _FEW and not any(one.also for one in led.diagnoses))


def _is_slight(run: LayoutRun) -> bool:
    """Whether no error is more than a coarser arithmetic's, which other values at another length may not show."""
    findings = run.measured.comparison.findings.values() if run.measured is not None else ()
    return all(finding.max_ratio <= LAMBDA for finding in findings)
