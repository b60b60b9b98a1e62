"""What a target should have refused: lengths, or layouts, for which it was not written; one cause in place of many."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from ..frontends.triton.launches import KernelCall
from ..model.intermediates import title
from ..model.layout_run import MATCH, MISMATCH
from ..model.mechanisms import door
from ..model.number import LAMBDA, listed
from ..model.report import Diagnosis, Where
from ..numerics.evidence import LayoutRun
from .lines import of_strays
from .why import Reasons, tensor_of

# How many of the accesses are told as evidence.
_TOLD = 2
# Where as many lines lack a mask, it is no slip that an edit could mend: the kernel was written without.
_FEW = 3
# What leaves a tensor, or meets another program's there; and what is seen of the same in the elements.
_OF_MEMORY, _OF_ELEMENTS = ("race", "outside"), ("load", "store", "masked")
_OF_LENGTH = "mask its loads and stores by the length, or refuse other lengths before the first launch"
_OF_LAYOUT = "pass the strides to the kernels, or call .contiguous() or refuse other layouts before the first launch"


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
    merged = [one for one in reasons.diagnoses if one.fault in here and one.kind in kinds]
    if not merged:
        said = "it takes multiples of a block, and does not refuse other lengths"
        return replace(reasons, known=(f"{first.layout}, it is right at {words}: {said}", *reasons.known))
    summary = f"lengths that end inside a block are wrong: in {first.layout} it is right at {words}"
    layouts = [layout for one in merged for layout in reasons.shown.get(one.fault, (first.layout,))]
    lines = [where for one in merged for where in one.where]
    return _led(reasons, ("tail/length", "M3", summary, _OF_LENGTH), merged, lines, layouts, _FEW)


def _is_slight(run: LayoutRun) -> bool:
    """Whether no error is more than a coarser arithmetic's, which other values at another length may not show."""
    findings = run.measured.comparison.findings.values() if run.measured is not None else ()
    return all(finding.max_ratio <= LAMBDA for finding in findings)


def _led(
    reasons: Reasons,
    cause: tuple[str, str, str, str],
    merged: Sequence[Diagnosis],
    lines: Iterable[Where],
    layouts: Iterable[str],
    few: int,
) -> Reasons:
    """One cause in the place of some diagnoses; beyond edits where it stands alone and in more lines than a few."""
    (fault, fault_class, summary, fix), told = cause, tuple(one.summary for one in merged[:_TOLD])
    where = tuple({(one.file, one.line): one for one in lines}.values())
    made = Diagnosis(fault, fault_class, summary, 1.0, told, where, fix, seen="seen while it ran")
    led = reasons.led_by(made, merged, dict.fromkeys(layouts))
    return replace(led, is_beyond_edits=len(where) > few and not any(one.also for one in led.diagnoses))


@door("contiguous", lambda reasons, *args: reasons)
def with_contiguous(reasons: Reasons, runs: Sequence[LayoutRun], calls: Mapping[str, Sequence[KernelCall]]) -> Reasons:
    """The reasons, where kernels are right in the first layout and misread tensors of which no stride reaches them.

    Args:
        calls: the launches of each layout.
    """
    first, failing = runs[0], [run for run in runs if run.verdict == MISMATCH]
    if first.verdict != MATCH or not failing or reasons.predicted:
        return reasons
    found = [one for one in reasons.diagnoses if one.kind in (*_OF_MEMORY, *_OF_ELEMENTS)]
    accused = {where.kernel for one in found for where in one.where}
    misread = [one for one in found if _is_given_no_stride(tensor_of(one), first, failing, calls, accused)]
    if not misread:
        return reasons
    tensors = list(dict.fromkeys(title(tensor_of(one)) for one in misread))
    # In the order of their launches.
    launched = dict.fromkeys(call.name for call in calls.get(failing[0].layout, ()))
    at = {where.kernel for one in misread for where in one.where}
    kernels, taken = listed([kernel for kernel in launched if kernel in at]), "they are" if tensors[1:] else "it is"
    summary = f"no stride of {listed(tensors)} reaches {kernels}: {taken} taken for contiguous"
    lines = [where for one in misread for where in one.where[:1]]
    layouts = [run.layout for run in failing]
    return _led(reasons, ("layout/contiguous", "S2", summary, _OF_LAYOUT), misread, lines, layouts, 0)


def _is_given_no_stride(
    tensor: str,
    first: LayoutRun,
    failing: Sequence[LayoutRun],
    calls: Mapping[str, Sequence[KernelCall]],
    kernels: set[str],
) -> bool:
    """Whether no launch gets a stride that a tensor has in a failing layout and not in the first, nor it in bytes."""
    plain, is_asked = _strides(first, tensor), False
    for run in failing:
        own = {step for step in _strides(run, tensor) - plain if step}
        given = [call.numbers for call in calls.get(run.layout, ()) if call.name in kernels]
        for number in (number for each in given for number in each if number):
            if any(number % step == 0 for step in own):
                return False
        is_asked |= bool(own and given)
    return is_asked


def _strides(run: LayoutRun, tensor: str) -> set[int]:
    """Its longest two: a short one may be another number's, such as how many heads there are."""
    return {step for one in run.laid if one.name.lower() == tensor for step in sorted(one.strides)[-2:]}
