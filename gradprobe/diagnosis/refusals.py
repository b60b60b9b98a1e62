"""What a target should have refused, lengths or layouts for which it was not written: one cause in place of many."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from msgspec import structs

from ..frontends.triton.launches import KernelCall
from ..model.intermediates import title
from ..model.layout_run import MATCH, MISMATCH
from ..model.mechanisms import door
from ..model.number import LAMBDA, listed
from ..model.report import Diagnosis
from ..numerics.evidence import LayoutRun
from .lines import of_strays
from .why import Reasons, tensor_of

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
    layouts = [name for found in merged for name in reasons.shown.get(found.fault, (first.layout,))]
    cause = Diagnosis("tail/length", "M3", summary, 1.0, fix=fix)
    return _led(reasons, cause, merged, layouts, _FEW)


def _led(reasons: Reasons, cause: Diagnosis, merged: Sequence[Diagnosis], layouts: Sequence[str], few: int) -> Reasons:
    """The reasons with a cause, at the lines of those that it stands for; beyond edits if it is alone in many lines."""
    lines = {(at.file, at.line): at for found in merged for at in found.where}
    cause = structs.replace(cause, where=tuple(lines.values()), seen="seen while it ran")
    led = reasons.led_by(cause, merged, dict.fromkeys(layouts))
    return replace(led, is_beyond_edits=len(lines) > few and not any(found.also for found in led.diagnoses))


@door("contiguous", lambda reasons, *args: reasons)
def with_contiguous(reasons: Reasons, runs: Sequence[LayoutRun], calls: Mapping[str, Sequence[KernelCall]]) -> Reasons:
    """The reasons, where kernels are right in the first layout and misread tensors of which they get no stride.

    Args:
        calls: the launches of each layout.
    """
    failing = [run for run in runs if run.verdict == MISMATCH]
    if runs[0].verdict != MATCH or not failing or reasons.predicted:
        return reasons
    misread, kernels = list[Diagnosis](), dict[str, None]()
    for found in reasons.diagnoses:
        of = dict.fromkeys(where.kernel for where in found.where)
        if found.kind in _MISREAD and _gets_no_stride(tensor_of(found), [*of], runs[0], failing, calls):
            misread.append(found)
            kernels |= of
    if not misread:
        return reasons
    tensors = list(dict.fromkeys(title(tensor_of(found)) for found in misread))
    taken = "they are" if tensors[1:] else "it is"
    summary = f"no stride of {listed(tensors)} reaches {listed([*kernels])}: {taken} taken for contiguous"
    fix = "pass the strides to the kernels, or call .contiguous() or refuse other layouts before the first launch"
    cause = Diagnosis("layout/contiguous", "S2", summary, 1.0, fix=fix)
    return _led(reasons, cause, misread, [run.layout for run in failing], 0)


def _gets_no_stride(
    tensor: str,
    kernels: Sequence[str],
    first: LayoutRun,
    failing: Sequence[LayoutRun],
    calls: Mapping[str, Sequence[KernelCall]],
) -> bool:
    """Whether launches are given numbers, and none is a stride that the tensor has in a failing layout alone."""
    plain, is_asked = _long_strides(first, tensor), False
    for run in failing:
        own = _long_strides(run, tensor) - plain - {0}
        given = set[int]()
        for call in calls.get(run.layout, ()):
            given |= {*call.numbers} if call.name in kernels else set()
        if any(number % stride == 0 for number in given - {0} for stride in own):  # a stride in bytes is a multiple
            return False
        is_asked |= bool(own and given)
    return is_asked


def _long_strides(run: LayoutRun, tensor: str) -> set[int]:
    """Its longest two: a short one may be another number's, such as how many heads there are."""
    laid = (each.strides for each in run.laid if each.name.lower() == tensor)
    return {stride for strides in laid for stride in sorted(strides)[-2:]}
