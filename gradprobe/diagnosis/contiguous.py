"""Kernels that are given no stride: one cause in place of each tensor that they misread where it is not contiguous."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..frontends.triton.kernel_call import KernelCall
from ..model.intermediates import title
from ..model.layout_run import MATCH, MISMATCH
from ..model.mechanisms import door
from ..model.number import listed
from ..model.report import Diagnosis
from ..numerics.evidence import LayoutRun
from .why import Reasons, tensor_of

FAULT = "layout/contiguous"
_OF_ADDRESSES = ("load/", "store/", "masked/", "outside/", "race/")
# How many of the accesses are told as evidence.
_TOLD = 2
_FIX = "pass the strides to the kernels, or call .contiguous() or refuse other layouts before the first launch"


@door("contiguous", lambda reasons, *args: reasons)
def with_contiguous(reasons: Reasons, runs: Sequence[LayoutRun], calls: Mapping[str, Sequence[KernelCall]]) -> Reasons:
    """The reasons, where kernels are right in the first layout and misread tensors of which no stride reaches them.

    Args:
        calls: the launches of each layout.
    """
    first, failing = runs[0], [run for run in runs if run.verdict == MISMATCH]
    if first.verdict != MATCH or not failing or reasons.predicted:
        return reasons
    found = [one for one in reasons.diagnoses if one.fault.startswith(_OF_ADDRESSES)]
    # In the order of their launches.
    launched = dict.fromkeys(call.name for call in calls.get(failing[0].layout, ()))
    accused = {where.kernel for one in found for where in one.where}
    misread = [one for one in found if _is_given_no_stride(tensor_of(one), first, failing, calls, accused)]
    if not misread:
        return reasons
    tensors = list(dict.fromkeys(title(tensor_of(one)) for one in misread))
    kernels = listed([kernel for kernel in launched if any(kernel == at.kernel for one in misread for at in one.where)])
    taken = "they are" if tensors[1:] else "it is"
    summary = f"no stride of {listed(tensors)} reaches {kernels}: {taken} taken for contiguous"
    lines = {(where.file, where.line): where for one in misread for where in one.where[:1]}
    told = tuple(one.summary for one in misread[:_TOLD])
    cause = Diagnosis(FAULT, "S2", summary, 1.0, told, tuple(lines.values()), _FIX, seen="seen while it ran")
    led = reasons.led_by(cause, misread, (run.layout for run in failing))
    return replace(led, is_beyond_edits=not any(one.also for one in led.diagnoses))


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
        if any(number % step == 0 for step in own for each in given for number in each if number):
            return False
        is_asked |= bool(own and given)
    return is_asked


def _strides(run: LayoutRun, tensor: str) -> set[int]:
    """Its longest two: a short one may be another number's, such as how many heads there are."""
    return {step for one in run.laid if one.name.lower() == tensor for step in sorted(one.strides)[-2:]}
