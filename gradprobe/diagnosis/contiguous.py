"""Kernels that are given no stride: one cause in place of each tensor that they misread where it is not contiguous."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..model.intermediates import title
from ..model.layout_run import MATCH, MISMATCH
from ..model.mechanisms import door
from ..model.number import listed
from ..model.report import Diagnosis
from ..numerics.evidence import LayoutRun
from ..runtime.launches import Numbers
from .why import Reasons, tensor_of

FAULT = "layout/contiguous"
# What was seen of elements, where the source may show the stride; and of memory.
_OF_ELEMENTS = ("load/", "store/", "masked/")
_OF_ADDRESSES = (*_OF_ELEMENTS, "outside/", "race/")
# How many of the accesses are told as evidence.
_TOLD = 2
_FIX = "pass the strides to the kernels, or call .contiguous() or refuse other layouts before the first launch"


@door("contiguous", lambda reasons, *args: reasons)
def with_contiguous(reasons: Reasons, runs: Sequence[LayoutRun], numbers: Mapping[str, Sequence[Numbers]]) -> Reasons:
    """The reasons, where kernels are right in the first layout and misread tensors of which no stride reaches them.

    Args:
        numbers: the whole numbers of the launches of each layout.
    """
    first, failing = runs[0], [run for run in runs if run.verdict == MISMATCH]
    if first.verdict != MATCH or not failing or reasons.predicted:
        return reasons
    found = [one for one in reasons.diagnoses if one.fault.startswith(_OF_ADDRESSES)]
    kernels = {where.kernel for one in found for where in one.where}
    given = {run.layout: [one for one in numbers.get(run.layout, ()) if one[0] in kernels] for run in failing}
    misread = [one for one in found if _is_given_no_stride(tensor_of(one), first, failing, given)]
    # Of memory the words of an edit are those of any finding; of elements they name a stride.
    if not misread or any(one.fix and one.fault.startswith(_OF_ELEMENTS) for one in misread):
        return reasons
    cause = _cause(misread, given[failing[0].layout], failing[0])
    led = reasons.led_by(cause, misread, (run.layout for run in failing))
    return replace(led, is_beyond_edits=not any(one.also for one in led.diagnoses))


def _is_given_no_stride(
    tensor: str, first: LayoutRun, failing: Sequence[LayoutRun], given: Mapping[str, Sequence[Numbers]]
) -> bool:
    """Whether no launch gets a stride that a tensor has in a failing layout and not in the first, nor it in bytes."""
    plain, is_asked = _strides(first, tensor), False
    for run in failing:
        own = {step for step in _strides(run, tensor) - plain if step}
        numbers = {number for _, each in given[run.layout] for number in each if number}
        if any(number % step == 0 for step in own for number in numbers):
            return False
        is_asked |= bool(own and given[run.layout])
    return is_asked


def _strides(run: LayoutRun, tensor: str) -> set[int]:
    """Its longest two: a short one may be another number's, such as how many heads there are."""
    return {step for one in run.laid if one.name.lower() == tensor for step in sorted(one.strides)[-2:]}


def _cause(misread: Sequence[Diagnosis], given: Sequence[Numbers], failing: LayoutRun) -> Diagnosis:
    accused = {where.kernel for one in misread for where in one.where}
    kernels = list(dict.fromkeys(kernel for kernel, _ in given if kernel in accused))
    names = list(dict.fromkeys(tensor_of(one) for one in misread))
    titles, taken = listed(list(map(title, names))), "it is" if len(names) == 1 else "they are"
    lay = "; ".join(f"{title(name)} {listed(list(map(str, sorted(_strides(failing, name)))))}" for name in names)
    said = f"no launch gets their longest strides in {failing.layout}: {lay}"
    lines = {(where.file, where.line): where for one in misread for where in one.where[:1]}
    summary = f"no stride of {titles} reaches {listed(kernels)}: {taken} taken for contiguous"
    evidence = (said, *(one.summary for one in misread[:_TOLD]))
    return Diagnosis(FAULT, "S2", summary, 1.0, evidence, tuple(lines.values()), _FIX, seen="seen while it ran")
